"""Incremental refreshes: they read only what was appended, and leave the rows that a full computation gives."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest

from include.cli.rows import entry_line
from include.delta.delta_log import DeltaLog
from include.engine import commit
from include.flows import refreshes
from include.lake import locations
from include.ledger import inspection, row_outcomes, verify
from include.spec import Delta, Expect, Table, View
from tests.support.flows import FULL, rows_of

SALES, SHOPS = "k INT, v INT, amount DECIMAL(20,4)", "k INT, city STRING"
SMALL = Expect("small", "twice < 100", otherwise="drop")
EVEN = Expect("even", "k % 2 = 0", otherwise="warn")


class Views:
    """Four views of `silver.<name>` and `silver.<name>_shops`. The last one reads the first."""

    def __init__(self, name: str) -> None:
        self.sales, self.shops = f"silver.{name}", f"silver.{name}_shops"
        base = View(name="", comment="", source=Delta(self.sales))
        self.some = replace(
            base,
            name=f"gold.{name}_some",
            schema="k INT, twice INT, amount DECIMAL(20,4)",
            transform="SELECT k, v * 2 AS twice, amount FROM source WHERE k IS NULL OR k > 0",
            expect=(SMALL, EVEN),
            partition_by=("k",),
        )
        self.totals = replace(
            base,
            name=f"gold.{name}_totals",
            schema="k INT, c BIGINT, n BIGINT, s BIGINT, total DECIMAL(30,4), low INT, high DECIMAL(20,4)",
            transform="SELECT k, count(*) AS c, count(v) AS n, sum(v) AS s, sum(amount) AS total, min(v) AS low, "
            "max(amount) AS high FROM source GROUP BY k",
            expect=(Expect("known", "k IS NOT NULL", otherwise="warn"),),
        )
        self.joined = replace(
            base,
            name=f"gold.{name}_joined",
            source={"sales": Delta(self.sales), "shops": Delta(self.shops)},
            schema="k INT, v INT, city STRING",
            transform="SELECT sales.k, v, city FROM sales LEFT JOIN shops ON sales.k = shops.k",
        )
        self.above = replace(
            base,
            name=f"gold.{name}_above",
            source=Delta(self.some.name),
            schema="c BIGINT, s BIGINT",
            transform="SELECT count(*) AS c, sum(twice) AS s FROM source",
        )
        self.all = (self.some, self.totals, self.joined, self.above)

    def assert_hold(self) -> None:
        """Each view holds what plain Python computes from the rows of the tables as they are."""
        sales, shops = (list(map(tuple, map(dict.values, rows_of(table)))) for table in (self.sales, self.shops))
        sales = [row[:3] for row in sales]
        computed = [(k, None if v is None else v * 2, amount) for k, v, amount in sales if k is None or k > 0]
        some = [row for row in computed if row[1] is not None and row[1] < 100]
        assert rows(self.some) == Counter(some)
        tally = refreshes.newest(self.some.name).tally
        odd = sum(k is None or k % 2 == 1 for k, *_ in computed)
        small = len(computed) - len(some)
        assert (tally["read"], tally["kept"], tally["dropped"]) == (len(computed), len(some), small)
        assert tally["broke"] == {"small": small, "even": odd}
        groups = {k: [row for row in sales if row[0] == k] for k, *_ in sales}
        assert rows(self.totals) == Counter(total_of(k, group) for k, group in groups.items())
        assert refreshes.newest(self.totals.name).tally["broke"] == {"known": int(None in groups)}
        cities = {k: [city for shop, city in shops if shop == k and k is not None] or [None] for k in groups}
        assert rows(self.joined) == Counter((k, v, city) for k, v, _ in sales for city in cities[k])
        assert rows(self.above) == Counter([(len(some), none_or(sum, [twice for _, twice, _ in some]))])
        for view in self.all:
            assert verify.verify(view).notes == []


def rows(table: Table) -> Counter:
    columns = table.schema.split(", ")
    return Counter(tuple(row[column.split()[0]] for column in columns) for row in rows_of(table.name))


def none_or(function: Callable, values: list) -> object:
    return function(values) if values else None


def total_of(k: int | None, group: list[tuple]) -> tuple:
    values = [v for _, v, _ in group if v is not None]
    amounts = [amount for *_, amount in group if amount is not None]
    return (k, len(group), len(values), none_or(sum, values), none_or(sum, amounts), none_or(min, values)) + (
        none_or(max, amounts),
    )


def random_sales(chance: random.Random, count: int) -> list[dict]:
    def or_none(value: object) -> object:
        return chance.choice([value, value, value, None])

    return [
        {
            "k": or_none(chance.randrange(-1, 5)),
            "v": or_none(chance.randrange(80)),
            "amount": or_none(Decimal(chance.randrange(-(10**14), 10**14)) / 10**4),
        }
        for _ in range(count)
    ]


def why_full(*views: Table) -> list[bool]:
    return [refreshes.newest(view.name).method.recomputed is not None for view in views]


# What happens to the tables between two refreshes, and whether each view is then recomputed.
EVENTS = {
    "append and compact": [False, False, False, False],
    "shop": [False, False, True, False],
    "delete": [True, True, True, True],
    "add a column": [True, True, True, True],
}
OFTEN = EVENTS | {"append": [False, False, False, False], "overwrite": [True, True, True, True]}


@pytest.mark.parametrize("seed", range(5 if FULL else 1))
def test_whatever_happens_to_its_tables_a_view_holds_what_a_full_computation_gives(
    spark, name, append, refresh, seed: int
):
    views, chance = Views(name), random.Random(seed)
    sales = f"delta.`{locations.table_path(views.sales)}`"
    append(views.sales, random_sales(chance, 30), SALES)
    append(views.shops, [{"k": k, "city": city} for k, city in enumerate("abc")], SHOPS)
    refresh("first", *views.all)
    assert why_full(*views.all) == [True] * 4
    events = [*OFTEN] * 2 if FULL else [*EVENTS]
    chance.shuffle(events)
    for number, event in enumerate(events):
        if event == "shop":
            append(views.shops, [{"k": chance.randrange(5), "city": "d"}], SHOPS)
        elif event == "delete":
            # A DELETE that finds no row changes nothing.
            append(views.sales, [{"k": 1, "v": number % 3, "amount": None}], SALES)
            spark.sql(f"DELETE FROM {sales} WHERE v % 3 = {number % 3}")
        elif event == "add a column":
            spark.sql(f"ALTER TABLE {sales} ADD COLUMNS (more_{number} INT)")
        elif event == "overwrite":
            spark.sql(f"INSERT OVERWRITE {sales} SELECT * FROM {sales} WHERE k > 1")
        else:
            for _ in range(3):
                append(views.sales, random_sales(chance, chance.randrange(1, 8)), SALES)
        if event == "append and compact":
            spark.sql(f"OPTIMIZE {sales}")
            append(views.sales, random_sales(chance, 3), SALES)
        refresh(f"run {number}", *views.all)
        assert why_full(*views.all) == OFTEN[event], event
        views.assert_hold()


def test_only_appended_files_are_read_and_only_their_rows_are_written(name, append, refresh):
    views = Views(name)
    append(views.sales, [{"k": 2, "v": 1, "amount": None}] * 10, SALES)
    refresh("monday", views.some, views.totals)
    for file in locations.table_path(views.sales).glob("*.parquet"):
        # A query that reads them would fail.
        file.unlink()
    append(views.sales, [{"k": 1, "v": 2, "amount": None}, {"k": 1, "v": 99, "amount": None}], SALES)
    append(views.sales, [{"k": 2, "v": 3, "amount": None}], SALES)
    refresh("tuesday", views.some, views.totals)
    assert rows(views.some) == Counter({(2, 2, None): 10, (1, 4, None): 1, (2, 6, None): 1})
    assert rows(views.totals) == Counter([(1, 2, 2, 101, None, 2, None), (2, 11, 11, 13, None, 1, None)])
    newest = DeltaLog(locations.table_path(views.some.name)).commit(1)
    assert (newest.operation, newest.parameters["mode"], newest.rows) == ("WRITE", "Append", 2)
    assert "12 rows (2 new) from" in entry_line(inspection.inspect(views.some, 1).newest[0])
    [outcome] = row_outcomes.batches(views.some, 1)
    assert (outcome.read, outcome.written, outcome.duplicates, outcome.dropped) == (3, 2, 0, 1)
    # Nothing is new, and the run has its commit.
    refresh("wednesday", views.some)
    assert refreshes.newest(views.some.name).run == "wednesday"
    assert refreshes.newest(views.some.name).method.added["read"] == 0
    assert len(rows_of(views.some.name)) == 12
    assert verify.verify(views.some).notes == []


class Killed(BaseException):
    """No `except Exception` catches this exception."""


def test_a_run_that_dies_before_its_commit_adds_its_rows_once(name, append, refresh, monkeypatch):
    views = Views(name)
    append(views.sales, [{"k": 2, "v": 1, "amount": None}] * 4, SALES)
    refresh("monday", views.some)
    append(views.sales, [{"k": 2, "v": 2, "amount": None}], SALES)

    def die(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(commit, "append", die)
        with pytest.raises(Killed):
            refresh("tuesday", views.some)
    assert len(rows_of(views.some.name)) == 4
    append(views.sales, [{"k": 2, "v": 3, "amount": None}], SALES)
    for _ in range(2):
        refresh("tuesday", views.some)
    assert rows(views.some) == Counter({(2, 2, None): 4, (2, 4, None): 1, (2, 6, None): 1})
    assert refreshes.newest(views.some.name).commit.version == 1


def test_a_view_is_recomputed_where_its_rows_are_not_those_of_its_definition_and_its_tables(
    name, append, refresh, spark
):
    views = Views(name)
    view, path = replace(views.some, expect=()), locations.table_path(views.sales)

    def reason_after(run: str, view: Table) -> str | None:
        append(views.sales, [{"k": 2, "v": 1, "amount": None}], SALES)
        refresh(run, view)
        assert len(rows_of(view.name)) == len([row for row in rows_of(views.sales) if row["k"] == 2])
        return refreshes.newest(view.name).method.recomputed

    assert reason_after("first", view) == "it is the first refresh"
    assert reason_after("second", view) is None
    view = replace(view, comment="another")
    assert reason_after("third", view) == "its definition has changed"
    spark.sql(f"DELETE FROM delta.`{locations.table_path(view.name)}`")
    assert reason_after("fourth", view) == "version 3 of it is no refresh"
    shutil.rmtree(path)
    for _ in range(DeltaLog(locations.table_path(view.name)).newest + 1):
        append(views.sales, [{"k": 2, "v": 1, "amount": None}], SALES)
    assert reason_after("fifth", view) == f"{views.sales} was replaced as a whole"
    spark.sql(f"RESTORE delta.`{path}` TO VERSION AS OF 2")
    assert "(RESTORE) is no append" in reason_after("sixth", view)
    assert reason_after("seventh", view) is None
    assert refreshes.newest_method(view.name).recomputed is None
