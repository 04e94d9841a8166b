"""`make new-table` writes a draft that the catalog accepts without its mark, or names the missing value."""

import io
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from include import catalog
from include.catalog import Catalog
from include.errors import DeclarationError, UsageError
from include.local import new_table
from include.local.new_table import draft_table
from include.project.table_files import DRAFT
from include.spec import Bucket, Cast, Delta, Files, Json, Kafka, Table, Upsert
from tests.conftest import ROOT
from tests.support.shop import TableProject, unload_package

NUMBERS = itertools.count()
COLUMNS = "order_id STRING, time TIMESTAMP, amount DECIMAL(10,2)"


def add_table(tables: dict[str, Table], name: str, *answers: str) -> Table:
    """Draft a table file. Adds its table to `tables` and returns it."""
    draft, rows = draft_table(Catalog(tables), name.partition(".")[2], *answers)
    module: dict = {}
    exec(draft.text(name, rows), module)
    tables[name] = module["TABLE"]
    return tables[name]


def test_messages_are_typed_out_of_json_and_keep_their_place_in_the_topic():
    tables: dict[str, Table] = {}
    assert add_table(tables, "bronze.orders", "kafka:").source == Kafka("orders")
    silver = add_table(tables, "silver.orders", "bronze.orders", COLUMNS)
    assert silver.source == Delta("bronze.orders")
    assert silver.parse == Json("value", into=("order_id", "time", "amount"))
    assert "amount DECIMAL(10, 2)" in silver.schema
    assert "offset BIGINT" in silver.schema
    assert silver.time_column == "time"


def test_rows_of_files_are_cast_where_they_are_no_text():
    tables: dict[str, Table] = {}
    assert add_table(tables, "bronze.bills", "csv:bills-in").source == Files("bills-in", format="csv")
    silver = add_table(tables, "silver.bills", "bronze.bills", "day DATE, text STRING")
    assert silver.parse == Cast(into=("day",))
    assert "_filename STRING" in silver.schema


def test_rows_are_counted_by_keys_and_by_hour_where_they_have_a_time():
    tables: dict[str, Table] = {}
    add_table(tables, "bronze.orders", "kafka:orders")
    add_table(tables, "silver.orders", "bronze.orders", f"{COLUMNS}, shop MAP<STRING, INT>")
    gold = add_table(tables, "gold.orders", "silver.orders", "", "order_id")
    assert gold.write == Upsert(keys=("order_id", "hour"), recompute=Bucket("hour", of="time", unit="hour"))
    add_table(tables, "bronze.bills", "csv:bills")
    add_table(tables, "silver.bills", "bronze.bills", "text STRING")
    assert add_table(tables, "gold.bills", "silver.bills", "", "text").write == Upsert(keys=("text",))


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (("kafak:x",), "SOURCE is 'kafak:x': did you mean 'kafka'?"),
        (("bronze.order",), "there is no table 'bronze.order': did you mean 'bronze.orders'?"),
        (
            ("bronze.orders", "order_id"),
            "COLUMNS is 'order_id', in which a column has no type: write Spark DDL",
        ),
        (("bronze.orders", "", "kye"), "KEYS names 'kye', no column of bronze.orders: did you mean 'key'?"),
        (("bronze.orders",), "COLUMNS is missing: set it to Spark DDL, such as order_id STRING, time TIMESTAMP"),
    ],
)
def test_what_cannot_be_meant_is_refused(answers: tuple[str, ...], sentence: str, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    tables: dict[str, Table] = {}
    add_table(tables, "bronze.orders", "kafka:orders")
    with pytest.raises(UsageError) as error:
        add_table(tables, "silver.orders", *answers)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("name", ["silver.A", "orders", "platinum.orders", "silver.my-orders"])
def test_a_name_that_is_no_table_writes_nothing(name: str):
    command = [sys.executable, "-m", "include.local.new_table", name, "--source", "kafka:x"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith(f"sluice: NAME is '{name}': write <layer>.<name> in small letters")


@pytest.fixture
def shop(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableProject]:
    """A project with the table bronze.a, into which the command writes."""
    project = TableProject(tmp_path, monkeypatch, f"new_tables_{next(NUMBERS)}")
    project.write_bronze("a")
    monkeypatch.setattr(catalog, "TABLES", project.package)
    monkeypatch.setattr(new_table, "ROOT", tmp_path)
    catalog.reload()
    yield project
    unload_package(project.package)


def test_what_it_writes_is_a_draft_until_its_first_line_is_removed(shop: TableProject, capsys):
    new_table.main("silver.a", "bronze.a", COLUMNS)
    assert capsys.readouterr().out.startswith(f"wrote {shop.package}/silver/a.py, a draft: edit it, remove its first ")
    assert (list(shop.load().tables), list(shop.load().drafts)) == (["bronze.a"], ["silver.a"])
    mark, _, text = shop.path("silver.a").read_text().partition("\n")
    assert mark == DRAFT
    shop.write("silver.a", text)
    assert list(catalog.require(shop.package).tables) == ["bronze.a", "silver.a"]


def test_a_draft_is_no_source_of_another(shop: TableProject):
    new_table.main("silver.a", "bronze.a", COLUMNS)
    shop.load()
    with pytest.raises(DeclarationError) as refusal:
        new_table.main("gold.a", "silver.a", keys="order_id")
    assert str(refusal.value) == shop.load().drafts["silver.a"]
    assert not shop.path("gold.a").exists()


def test_what_the_checks_would_refuse_is_not_written(shop: TableProject):
    with pytest.raises(DeclarationError, match=f"^{shop.package}/silver/a.py: "):
        new_table.main("silver.a", "bronze.a", "topic INT")
    assert not shop.path("silver.a").exists()


def test_a_name_that_a_file_has_is_refused_whether_live_or_draft(shop: TableProject):
    new_table.main("silver.a", "bronze.a", COLUMNS)
    for name in ("bronze.a", "silver.a"):
        place = f"{shop.package}/{name.replace('.', '/')}.py"
        text = shop.path(name).read_text()
        with pytest.raises(UsageError) as refusal:
            new_table.main(name, "kafka:x")
        assert str(refusal.value) == f"NAME is '{name}', and {place} exists: choose another name"
        assert shop.path(name).read_text() == text
