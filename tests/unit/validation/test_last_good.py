"""A table file that is wrong costs its own table, and what is made of it, and no other."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import Engine, select

from include import catalog
from include.control import definitions, incidents, orders
from include.control.commands import Action, Command, execute_in
from include.control.definitions import INVALID_DEFINITION
from include.control.observed_flow import Failure
from include.control.store import database
from include.control.store.schema import runs
from include.engine.checkpoints import definition
from include.errors import DeclarationError, UsageError
from tests.conftest import ROOT
from tests.mistakes.definitions import CASES
from tests.support.shop import TableProject, forget

BROKEN = "TABLE = Table(\n"
NUMBERS = itertools.count()


@pytest.fixture
def shop(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableProject]:
    """bronze.a <- silver.a <- gold.a, and bronze.b on its own; all right, and known as such."""
    made = TableProject(tmp_path, monkeypatch, f"shop_{next(NUMBERS)}")
    made.bronze("a")
    made.bronze("b")
    made.above("silver.a", "bronze.a")
    made.above("gold.a", "silver.a")
    keep(made)
    yield made
    forget(made.package)


def keep(shop: TableProject) -> set[str]:
    found = shop.load()
    return catalog.store_definitions(found, found.tables)


def test_a_wrong_file_leaves_all_tables_as_they_were_and_is_named(shop: TableProject):
    before = shop.load()
    shop.write("silver.a", BROKEN)
    after = shop.load()
    assert list(after.tables) == list(before.tables)
    assert after.tables["silver.a"].schema == before.tables["silver.a"].schema
    assert after.warnings == {
        "silver.a": f"{shop.package}/silver/a.py:1: is no Python ('(' was never closed): mend that line "
        f"(silver.a goes on with its last good definition)"
    }


def test_the_last_good_definition_has_the_fingerprint_that_it_had(shop: TableProject):
    """Else its flow would take it for a change, and mark its rows as made by another."""
    before = shop.load().table("silver.a")
    fingerprints = definition.fingerprint(before), definition.rows_fingerprint(before)
    shop.write("silver.a", BROKEN)
    after = shop.load().table("silver.a")
    assert (definition.fingerprint(after), definition.rows_fingerprint(after)) == fingerprints


def test_the_newest_good_definition_is_the_one_that_is_kept(shop: TableProject):
    shop.above("silver.a", "bronze.a", '"value", "offset"', "value BINARY, offset BIGINT")
    assert keep(shop) == {"silver.a"}
    assert keep(shop) == set()
    shop.write("silver.a", BROKEN)
    assert keep(shop) == set()
    found = shop.load().table("silver.a")
    assert found.schema == "value BINARY, offset BIGINT"
    assert "offset" in definition._code(found.transform)


def test_a_wrong_file_that_never_was_right_takes_what_reads_it_and_nothing_else(shop: TableProject):
    shop.write("silver.new", BROKEN)
    shop.above("gold.new", "silver.new")
    shop.above("gold.newer", "gold.new")
    found = shop.load()
    assert set(found.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert found.warnings["silver.new"].endswith(
        "(there is no earlier definition, so nothing runs of silver.new, gold.new, gold.newer)"
    )
    with pytest.raises(DeclarationError, match="is no Python"):
        found.flow("silver.new")
    with pytest.raises(DeclarationError) as refused:
        found.table("gold.newer")
    assert str(refused.value) == "gold.newer cannot be used, as it reads gold.new: mend that file"
    with pytest.raises(UsageError):
        found.table("gold.other")


def test_a_table_goes_on_where_a_module_that_it_imports_is_wrong(shop: TableProject):
    helper = shop.path("silver._columns")
    helper.write_text('COLUMNS = ["value"]\n')
    text = shop.above("silver.a", "bronze.a", "*COLUMNS")
    shop.write("silver.a", f"from {shop.package}.silver._columns import COLUMNS\n{text}")
    keep(shop)
    helper.write_text("COLUMNS = [")
    found = shop.load()
    assert found.table("silver.a").transform.__globals__["COLUMNS"] == ["value"]
    assert "never closed" in found.warnings["silver.a"]
    helper.write_text('COLUMNS = ["offset"]\n')
    assert shop.load().table("silver.a").transform.__globals__["COLUMNS"] == ["offset"]


def test_a_layer_that_cannot_be_imported_leaves_its_tables_as_they_were(shop: TableProject):
    (shop.path("silver.a").parent / "__init__.py").write_text("1 / 0\n")
    found = shop.load()
    assert set(found.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert list(found.warnings) == ["silver.a"]


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
    found = shop.load()
    assert set(found.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert list(found.warnings) == ["silver.a"]


@st.composite
def texts(draw, right: str) -> str | bytes:
    """Anything at all, and right files with a mistake of the fingers."""
    begin, end = sorted(draw(st.lists(st.integers(0, len(right)), min_size=2, max_size=2)))
    mistyped = right[:begin] + draw(st.sampled_from(["", "(", '"', " ", "x", ",", "\t", "5", "None"])) + right[end:]
    return draw(st.one_of(st.just(mistyped), st.text(), st.binary()))


@given(data=st.data())
@hypothesis.settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_the_tables_beside_it_are_as_before(shop: TableProject, data: st.DataObject):
    right = shop.above("silver.a", "bronze.a")
    keep(shop)
    text = data.draw(texts(right))
    # Others fold the ends of lines.
    shop.path("silver.a").write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    found = shop.load()
    assert set(found.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert set(found.warnings) <= {"silver.a"}


def wrong_files() -> Iterator[bytes]:
    """What the file of `silver.a` may hold: the files of tests/mistakes, and one for each wrong definition there."""
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
    # What they read is there, and what reads them takes any changes, so that nothing but themselves is wrong.
    shop.bronze("events")
    reader = shop.path("gold.a").read_text()
    shop.write("gold.a", reader.replace('Delta("silver.a")', 'Delta("silver.a", changes=True)'))
    keep(shop)
    files = list(wrong_files())
    assert len(files) > 200
    for held in files:
        shop.path("silver.a").write_bytes(held)
        found = shop.load()
        assert set(found.tables) == {"bronze.a", "bronze.b", "bronze.events", "silver.a", "gold.a"}, held
        assert set(found.warnings) <= {"silver.a"}, held


def test_a_file_whose_name_sql_cannot_say_is_no_table(shop: TableProject):
    shop.path("silver.a").with_name("my-table.py").write_text("")
    found = shop.load()
    assert set(found.tables) == {"bronze.a", "bronze.b", "silver.a", "gold.a"}
    assert list(found.warnings) == ["silver.my-table"]


def test_a_table_below_that_was_changed_with_the_wrong_file_goes_on_as_it_was(shop: TableProject):
    """It reads a column of which only the wrong file knows."""
    shop.write("silver.a", BROKEN)
    shop.write(
        "gold.a",
        "from include.spec import Bucket, Delta, Table, Upsert\n"
        'TABLE = Table(name="gold.a", comment="", source=Delta("silver.a"), schema="minute TIMESTAMP, rows BIGINT",\n'
        '    transform=lambda rows: rows, write=Upsert(["minute"], recompute=Bucket("minute", of="time")))\n',
    )
    found = shop.load()
    assert found.tables["gold.a"].schema == "value BINARY"
    assert set(found.warnings) == {"silver.a", "gold.a"}


def test_the_definition_of_a_deleted_file_is_forgotten(shop: TableProject):
    shop.path("gold.a").unlink()
    shop.load()
    catalog.delete_obsolete_definitions()
    shop.write("gold.a", BROKEN)
    assert "gold.a" not in shop.load().tables


def alarms(engine: Engine) -> list[tuple[str, str]]:
    return [(one.target, one.state) for one in incidents.untold(engine)]


def failed(engine: Engine, flow: str) -> bool:
    with database.transaction(engine) as connection:
        return connection.execute(select(runs.c.failure).where(runs.c.flow == flow)).scalar_one() is not None


def test_a_wrong_file_is_an_alarm_until_it_is_mended_or_a_person_takes_it_on(shop: TableProject, engine: Engine):
    text = shop.path("silver.a").read_text()
    shop.write("silver.a", BROKEN)
    assert definitions.settle(engine, shop.load()) == {"silver.a": None}
    definitions.settle(engine, shop.load())
    assert alarms(engine) == [("definition silver.a", INVALID_DEFINITION)]
    with database.transaction(engine) as connection:
        said = execute_in(connection, Command(Action.ACKNOWLEDGE, ("silver.a",), "ann", "known"))
    assert said["silver.a"].startswith("its alarm INVALID DEFINITION is acknowledged by ann")
    assert str(definitions.settle(engine, shop.load())["silver.a"]).startswith("acknowledged by ann")
    shop.write("silver.a", text)
    assert definitions.settle(engine, shop.load()) == {}
    assert incidents.open_of(engine, "definition silver.a") is None


def test_a_flow_that_waits_for_its_file_starts_when_that_is_mended(shop: TableProject, engine: Engine):
    shop.write("silver.new", BROKEN)
    orders.fail(engine, ["silver.new"], Failure("is no Python", INVALID_DEFINITION, needs_person=False))
    definitions.settle(engine, shop.load())
    assert failed(engine, "silver.new")
    shop.above("silver.new", "bronze.b")
    definitions.settle(engine, shop.load())
    assert not failed(engine, "silver.new")


def test_a_flow_that_only_a_person_can_cure_starts_when_its_file_has_changed(shop: TableProject, engine: Engine):
    definitions.settle(engine, shop.load())
    for flow in ("silver.a", "gold.a"):
        orders.fail(engine, [flow], Failure("no such column", "UNRESOLVED_COLUMN", needs_person=True))
    definitions.settle(engine, shop.load())
    assert failed(engine, "silver.a")
    shop.above("silver.a", "bronze.a", '"value", "offset"', "value BINARY, offset BIGINT")
    definitions.settle(engine, shop.load())
    assert not failed(engine, "silver.a")
    assert failed(engine, "gold.a")
