"""A wrong table file affects its own table and the tables that read it, and no other table."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import Engine, select

from include import catalog
from include.control import definitions
from include.control.commands import Action, Command, execute_in
from include.control.definitions import INVALID_DEFINITION
from include.control.flows import incidents, orders
from include.control.flows.observed_flow import Failure
from include.control.store import database
from include.control.store.schema import runs
from include.engine.checkpoints import definition
from include.errors import DeclarationError, UsageError
from tests.conftest import ROOT
from tests.mistakes.definitions import CASES
from tests.support.shop import TableProject, unload_package

BROKEN = "TABLE = Table(\n"
NUMBERS = itertools.count()


@pytest.fixture
def shop(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableProject]:
    """bronze.a <- silver.a <- gold.a, and bronze.b. All definitions are valid and stored."""
    project = TableProject(tmp_path, monkeypatch, f"shop_{next(NUMBERS)}")
    project.write_bronze("a")
    project.write_bronze("b")
    project.write_reader("silver.a", "bronze.a")
    project.write_reader("gold.a", "silver.a")
    store_definitions(project)
    yield project
    unload_package(project.package)


def store_definitions(shop: TableProject) -> set[str]:
    loaded_catalog = shop.load()
    return catalog.store_definitions(loaded_catalog, loaded_catalog.tables)


def test_a_wrong_file_leaves_all_tables_as_they_were_and_is_named(shop: TableProject):
    catalog_before = shop.load()
    shop.write("silver.a", BROKEN)
    catalog_after = shop.load()
    assert list(catalog_after.tables) == list(catalog_before.tables)
    assert catalog_after.tables["silver.a"].schema == catalog_before.tables["silver.a"].schema
    assert catalog_after.warnings == {
        "silver.a": f"{shop.package}/silver/a.py:1: is no Python ('(' was never closed): fix that line "
        f"(silver.a goes on with its last good definition)"
    }


def test_the_last_good_definition_has_the_fingerprint_that_it_had(shop: TableProject):
    """With another fingerprint, the flow would take the definition for a changed one."""
    table_before = shop.load().table("silver.a")
    fingerprints = definition.fingerprint(table_before), definition.rows_fingerprint(table_before)
    shop.write("silver.a", BROKEN)
    table_after = shop.load().table("silver.a")
    assert (definition.fingerprint(table_after), definition.rows_fingerprint(table_after)) == fingerprints


def test_the_newest_good_definition_is_the_one_that_is_kept(shop: TableProject):
    shop.write_reader("silver.a", "bronze.a", '"value", "offset"', "value BINARY, offset BIGINT")
    assert store_definitions(shop) == {"silver.a"}
    assert store_definitions(shop) == set()
    shop.write("silver.a", BROKEN)
    assert store_definitions(shop) == set()
    table = shop.load().table("silver.a")
    assert table.schema == "value BINARY, offset BIGINT"
    assert "offset" in definition._code(table.transform)


def test_a_wrong_file_that_never_was_right_takes_what_reads_it_and_nothing_else(shop: TableProject):
    shop.write("silver.new", BROKEN)
    shop.write_reader("gold.new", "silver.new")
    shop.write_reader("gold.newer", "gold.new")
    loaded_catalog = shop.load()
    assert set(loaded_catalog.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert loaded_catalog.warnings["silver.new"].endswith(
        "(there is no earlier definition, so nothing runs of silver.new, gold.new, gold.newer)"
    )
    with pytest.raises(DeclarationError, match="is no Python"):
        loaded_catalog.flow("silver.new")
    with pytest.raises(DeclarationError) as error:
        loaded_catalog.table("gold.newer")
    assert str(error.value) == "gold.newer cannot be used, as it reads gold.new: fix that file"
    with pytest.raises(UsageError):
        loaded_catalog.table("gold.other")


def test_a_table_goes_on_where_a_module_that_it_imports_is_wrong(shop: TableProject):
    helper = shop.path("silver._columns")
    helper.write_text('COLUMNS = ["value"]\n')
    text = shop.write_reader("silver.a", "bronze.a", "*COLUMNS")
    shop.write("silver.a", f"from {shop.package}.silver._columns import COLUMNS\n{text}")
    store_definitions(shop)
    helper.write_text("COLUMNS = [")
    loaded_catalog = shop.load()
    assert loaded_catalog.table("silver.a").transform.__globals__["COLUMNS"] == ["value"]
    assert "never closed" in loaded_catalog.warnings["silver.a"]
    helper.write_text('COLUMNS = ["offset"]\n')
    assert shop.load().table("silver.a").transform.__globals__["COLUMNS"] == ["offset"]


def test_a_layer_that_cannot_be_imported_leaves_its_tables_as_they_were(shop: TableProject):
    (shop.path("silver.a").parent / "__init__.py").write_text("1 / 0\n")
    loaded_catalog = shop.load()
    assert set(loaded_catalog.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert list(loaded_catalog.warnings) == ["silver.a"]


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit(3)",
        "class Odd(BaseException): pass\nraise Odd",
        "import time, nothing_of_this_name",
        'from include.spec import *\nTABLE = Table(name="silver.a", source=Delta("silver.a"), comment="")',
        'from include.spec import *\nTABLE = Table(name="silver.a", source=Delta("bronze.a"), time_column=["x"])',
        'from include.spec import *\nTABLE = Table(name="silver.a", source=Delta("bronze.a"), comment="", driver=5)',
        'from include.spec import *\nTABLE = Table(name="silver.a", source=Delta(["bronze.a"]), comment="")',
        'from include.spec import *\nTABLE = Table(name="silver.a", source=Delta("bronze.a"), expect=7)',
        "TABLE = None",
        "\x00",
        "",
    ],
)
def test_whatever_is_wrong_with_a_file_the_others_are_as_before(shop: TableProject, text: str):
    shop.write("silver.a", text)
    loaded_catalog = shop.load()
    assert set(loaded_catalog.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert list(loaded_catalog.warnings) == ["silver.a"]


@st.composite
def texts(draw, right: str) -> str | bytes:
    """Any text, any bytes, and the right file with a typo."""
    begin, end = sorted(draw(st.lists(st.integers(0, len(right)), min_size=2, max_size=2)))
    mistyped_text = (
        right[:begin] + draw(st.sampled_from(["", "(", '"', " ", "x", ",", "\t", "5", "None"])) + right[end:]
    )
    return draw(st.one_of(st.just(mistyped_text), st.text(), st.binary()))


@given(data=st.data())
@hypothesis.settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_the_tables_beside_it_are_as_before(shop: TableProject, data: st.DataObject):
    right = shop.write_reader("silver.a", "bronze.a")
    store_definitions(shop)
    text = data.draw(texts(right))
    # Text mode would convert the ends of lines.
    shop.path("silver.a").write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    loaded_catalog = shop.load()
    assert set(loaded_catalog.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert set(loaded_catalog.warnings) <= {"silver.a"}


def wrong_files() -> Iterator[bytes]:
    """Contents for the file of `silver.a`: all wrong files and wrong definitions of tests/mistakes."""
    for file in sorted((ROOT / "tests" / "mistakes").glob("*/**/*")):
        if file.suffix in (".py", ".txt"):
            yield file.read_bytes().replace(b"silver.readings", b"silver.a")
    for number, case in enumerate(CASES):
        text = (
            f'"""{case.name}"""\n'
            "from dataclasses import replace\n"
            "from tests.mistakes.definitions import CASES\n"
            f'TABLE = replace(CASES[{number}].tables[0], name="silver.a")\n'
        )
        yield text.encode()


def test_no_known_mistake_costs_another_table(shop: TableProject):
    # The source exists and the reader accepts any change, so only the file itself is wrong.
    shop.write_bronze("events")
    reader = shop.path("gold.a").read_text()
    shop.write("gold.a", reader.replace('Delta("silver.a")', 'Delta("silver.a", changes=True)'))
    store_definitions(shop)
    files = list(wrong_files())
    assert len(files) > 200
    for content in files:
        shop.path("silver.a").write_bytes(content)
        loaded_catalog = shop.load()
        assert set(loaded_catalog.tables) == {"bronze.a", "bronze.b", "bronze.events", "silver.a", "gold.a"}, content
        assert set(loaded_catalog.warnings) <= {"silver.a"}, content


def test_a_file_whose_name_sql_cannot_say_is_no_table(shop: TableProject):
    shop.path("silver.a").with_name("my-table.py").write_text("")
    loaded_catalog = shop.load()
    assert set(loaded_catalog.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert list(loaded_catalog.warnings) == ["silver.my-table"]


def test_a_table_below_that_was_changed_with_the_wrong_file_goes_on_as_it_was(shop: TableProject):
    """The new gold.a reads a column that only the wrong file declares."""
    shop.write("silver.a", BROKEN)
    shop.write(
        "gold.a",
        "from include.spec import Bucket, Delta, Table, Upsert\n"
        'TABLE = Table(name="gold.a", comment="", source=Delta("silver.a"), schema="minute TIMESTAMP, rows BIGINT",\n'
        '    transform=lambda rows: rows, write=Upsert(["minute"], recompute=Bucket("minute", of="time")))\n',
    )
    loaded_catalog = shop.load()
    assert loaded_catalog.tables["gold.a"].schema == "value BINARY"
    assert set(loaded_catalog.warnings) == {"silver.a", "gold.a"}


def test_the_definition_of_a_deleted_file_is_forgotten(shop: TableProject):
    shop.path("gold.a").unlink()
    shop.load()
    catalog.delete_obsolete_definitions()
    shop.write("gold.a", BROKEN)
    assert "gold.a" not in shop.load().tables


def open_alarms(engine: Engine) -> list[tuple[str, str]]:
    return [(notice.first.target, notice.first.state) for notice in incidents.unsent(engine)]


def has_failed(engine: Engine, flow: str) -> bool:
    with database.transaction(engine) as connection:
        return connection.execute(select(runs.c.failure).where(runs.c.flow == flow)).scalar_one() is not None


def test_a_wrong_file_is_an_alarm_until_it_is_mended_or_a_person_takes_it_on(shop: TableProject, engine: Engine):
    text = shop.path("silver.a").read_text()
    shop.write("silver.a", BROKEN)
    assert definitions.settle(engine, shop.load()) == {"silver.a": None}
    definitions.settle(engine, shop.load())
    assert open_alarms(engine) == [("definition silver.a", INVALID_DEFINITION)]
    with database.transaction(engine) as connection:
        messages = execute_in(connection, Command(Action.ACKNOWLEDGE, ("silver.a",), "ann", "known"))
    assert messages["silver.a"].message.startswith("its alarm INVALID DEFINITION is acknowledged by ann")
    assert str(definitions.settle(engine, shop.load())["silver.a"]).startswith("acknowledged by ann")
    shop.write("silver.a", text)
    assert definitions.settle(engine, shop.load()) == {}
    assert incidents.open_of(engine, "definition silver.a") is None


def test_a_flow_that_waits_for_its_file_starts_when_that_is_mended(shop: TableProject, engine: Engine):
    shop.write("silver.new", BROKEN)
    orders.fail(engine, ["silver.new"], Failure("is no Python", INVALID_DEFINITION, needs_person=False))
    definitions.settle(engine, shop.load())
    assert has_failed(engine, "silver.new")
    shop.write_reader("silver.new", "bronze.b")
    definitions.settle(engine, shop.load())
    assert not has_failed(engine, "silver.new")


def test_a_flow_that_only_a_person_can_cure_starts_when_its_file_has_changed(shop: TableProject, engine: Engine):
    definitions.settle(engine, shop.load())
    for flow in ("silver.a", "gold.a"):
        orders.fail(engine, [flow], Failure("no such column", "UNRESOLVED_COLUMN", needs_person=True))
    definitions.settle(engine, shop.load())
    assert has_failed(engine, "silver.a")
    shop.write_reader("silver.a", "bronze.a", '"value", "offset"', "value BINARY, offset BIGINT")
    definitions.settle(engine, shop.load())
    assert not has_failed(engine, "silver.a")
    assert has_failed(engine, "gold.a")
