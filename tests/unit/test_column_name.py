"""Which column names of files are the same column, and how a table spells them."""

import re

import pytest

from include.spec import ddl

EQUAL = [
    ("\u00b5g", "\u03bcg", "\u039cG"),
    ("K", "k", "\u212a"),
    ("\u03c3", "\u03c2", "\u03a3"),
    ("\u017f", "s", "S"),
    ("\u0130d", "id", "\u0131d", "ID", "i\u0307d"),
    ("\u01c5", "\u01c6", "\u01c4"),
    ("\u1fbc", "\u1fb3"),
    ("Order Id", "order_id", "ORDER\u00a0ID", " order\tid "),
]


@pytest.mark.parametrize("names", EQUAL)
def test_names_of_one_column_have_one_key(names: tuple[str, ...]):
    assert len({ddl.key(name) for name in names}) == 1


def test_names_of_several_columns_have_several_keys():
    names = ["a", "\u00e4", "\u00df", "ss", "_a", "a_", "a.b", "a_b", "\ufb01", "fi", "\u00e9", "e\u0301"]
    assert len({ddl.key(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("Amount (EUR)", "Amount_EUR"),
        ("a, b;c{d}=e\n", "a_b_c_d_e"),
        ("_a b_", "_a_b_"),
        ("a.b-c`d", "a.b-c`d"),
        (" =; ", ""),
        ("a_b", "a_b"),
    ],
)
def test_a_table_spells_a_name_without_what_delta_rejects(name: str, stored: str):
    assert ddl.stored(name) == stored
    assert not re.search(r"[ ,;{}()\n\t=]", ddl.stored(name))


def test_the_most_frequent_spelling_counts_and_the_first_among_equals():
    assert ddl.most_frequent([("ID", 1), ("id", 2), ("Id", 2), ("b", 1), ("B", 1)]) == {"id": "id", "b": "b"}
