"""The ready-made rules: their names and conditions, and the arguments that they refuse."""

import pytest

from include.project.examination import in_graph_order
from include.rules import Expect, References, Unique, below_last, no_error, not_null, one_of, references, unique
from include.spec import Kafka, Table


def test_a_rule_has_a_name_that_says_what_it_wants():
    rules = [
        not_null("a", "b"),
        one_of("status", ["x"]),
        unique("a", "b"),
        references("customer_id", "silver.clients", "id"),
    ]
    names = ["a and b not null", "status in set", "a and b unique", "customer_id in silver.clients"]
    assert [rule.name for rule in rules] == names
    assert {rule.otherwise for rule in rules} == {"quarantine"}
    assert not_null("a", name="known", otherwise="fail") == Expect("known", "`a` IS NOT NULL", "fail", ("a",))


def test_a_rule_checks_the_columns_that_it_names():
    assert not_null("a", "b") == Expect("a and b not null", "`a` IS NOT NULL AND `b` IS NOT NULL", columns=("a", "b"))
    assert one_of("a", [1], "drop") == Expect("a in set", "`a` IN (1)", "drop", ("a",))
    assert unique("a", "b", otherwise="drop", name="one row") == Unique("one row", ("a", "b"), "drop")
    looked_up = references("key", "silver.b", "id", "drop", wait=False)
    assert looked_up == References("key in silver.b", "key", "silver.b", "id", "drop", wait=False)
    assert references("key", "silver.b", "id").wait is True


def test_a_row_has_no_error_of_a_column_if_it_has_no_entry_of_that_column():
    condition = "NOT coalesce(exists(_errors, error -> error.field IN ('a', 'b')), false)"
    assert no_error("a", "b", otherwise="drop") == Expect("a and b without error", condition, "drop", ("_errors",))
    assert no_error("a", name="typed").name == "typed"


@pytest.mark.parametrize(
    ("type_", "last"),
    [
        ("tinyint", "127L"),
        ("SHORT", "32767L"),
        ("Int", "2147483647L"),
        ("BIGINT NOT NULL", "9223372036854775807L"),
        ("decimal", "9999999999.BD"),
        ("DECIMAL(5)", "99999.BD"),
        ("NUMERIC (5, 2)", "999.99BD"),
        *((name, "double('Infinity')") for name in ("DOUBLE", "FLOAT", "REAL")),
        ("DATE", "DATE'9999-12-31'"),
        *((name, "TIMESTAMP'9999-12-31 00:00:00 UTC'") for name in ("TIMESTAMP", "TIMESTAMP_LTZ")),
        ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'9999-12-31 00:00:00'"),
    ],
)
def test_a_value_is_below_the_last_of_its_type_and_the_rule_is_implied(type_: str, last: str):
    condition = f"coalesce(`a` < {last}, true)"
    assert below_last("a", type_, "a is finite") == Expect("a is finite", condition, columns=("a",), implied=True)


@pytest.mark.parametrize("type_", ["STRING", "BOOLEAN", "ARRAY<INT>"])
def test_a_type_without_a_last_value_has_no_such_rule(type_: str):
    assert below_last("a", type_, "a is finite") is None


def test_values_of_a_set_are_quoted_as_sql_wants_them():
    rule = one_of("a`b", ["it's", "back\\slash", 7, True])
    assert rule.condition == "`a``b` IN ('it\\'s', 'back\\\\slash', 7, true)"


@pytest.mark.parametrize("make", [lambda: not_null(), lambda: one_of("a", []), lambda: unique(), lambda: no_error()])
def test_a_rule_over_nothing_is_refused(make):
    with pytest.raises(ValueError, match="^a rule over nothing: name a column, or a value$"):
        make()


def test_a_value_that_sql_would_not_take_as_it_stands_is_refused():
    with pytest.raises(TypeError, match=r"^1\.5 is no text, whole number or truth value: write the rule as an Expect$"):
        one_of("a", [1.5])


def test_a_table_comes_after_the_one_that_a_rule_of_its_looks_into():
    def table(name: str, *rules) -> Table:
        return Table(name=name, comment="", source=Kafka("events"), expect=rules)

    tables = [table("silver.a", references("key", "silver.b", "key")), table("silver.b")]
    assert in_graph_order({declaration.name: declaration for declaration in tables}) == ["silver.b", "silver.a"]
