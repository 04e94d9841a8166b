"""The ready-made rules: their names and conditions, and the arguments that they refuse."""

import pytest

from include.project.examination import in_graph_order
from include.rules import Expect, not_null, one_of, references, unique
from include.spec import Kafka, Table


def test_a_rule_has_a_name_that_says_what_it_wants():
    rules = [
        not_null("a", "b"),
        one_of("status", ["x"]),
        unique("a", "b"),
        references("customer_id", "silver.customers", "id"),
    ]
    names = ["a and b not null", "status in set", "a and b unique", "customer_id in silver.customers"]
    assert [rule.name for rule in rules] == names
    assert {rule.otherwise for rule in rules} == {"quarantine"}
    assert not_null("a", name="known", otherwise="fail") == Expect("known", "`a` IS NOT NULL", "fail", ("a",))


def test_values_of_a_set_are_quoted_as_sql_wants_them():
    rule = one_of("a`b", ["it's", "back\\slash", 7, True])
    assert rule.condition == "`a``b` IN ('it\\'s', 'back\\\\slash', 7, true)"


@pytest.mark.parametrize("make", [lambda: not_null(), lambda: one_of("a", []), lambda: unique()])
def test_a_rule_over_nothing_is_refused(make):
    with pytest.raises(ValueError, match="a rule over nothing: name a column, or a value"):
        make()


def test_a_value_that_sql_would_not_take_as_it_stands_is_refused():
    with pytest.raises(TypeError, match="write the rule as an Expect"):
        one_of("a", [1.5])


def test_a_table_comes_after_the_one_that_a_rule_of_its_looks_into():
    def table(name: str, *rules) -> Table:
        return Table(name=name, comment="", source=Kafka("events"), expect=rules)

    tables = [table("silver.a", references("key", "silver.b", "key")), table("silver.b")]
    assert in_graph_order({declaration.name: declaration for declaration in tables}) == ["silver.b", "silver.a"]
