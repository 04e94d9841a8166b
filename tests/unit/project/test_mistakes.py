"""Each wrong table file is refused in sentences that name the file, the value and the remedy.

Most cases are entries of `tests/mistakes/*.py`: a good definition with a replaced value. If the file itself or one of
its imports is wrong, the case is a directory there. Files that Python or an editor cannot read end with `.txt`.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from include import catalog
from include.errors import DeclarationError
from include.project import table_files
from include.project.table_files import TableFile
from include.spec import Append, Table
from tests.conftest import ROOT
from tests.mistakes.case import EVENTS, GOOD, READINGS, Case
from tests.mistakes.definitions import CASES

MISTAKES = ROOT / "tests" / "mistakes"
IN_MEMORY = "in_memory"

# Each sentence starts with the path of the file below the directory of the case.
SENTENCES = {
    "cycle": ("silver/egg.py: reads itself in a cycle (silver.egg <- silver.hen <- silver.egg): cut one of these",),
    "delta_is_not_imported": ("silver/readings.py:8: 'Delta' is not defined: write `from include.spec import Delta`",),
    "file_ends_the_process": ("silver/readings.py:5: cannot be imported (SystemExit: 1): fix that line",),
    "import_error": (
        "silver/readings.py:3: imports 'not_there_at_all', which is not installed: fix the name, or add it to "
        "requirements.txt and run `make lock`",
    ),
    "import_of_a_misspelt_module": (
        "silver/readings.py:3: imports 'include.spek', which is no module of this project: fix the name",
    ),
    "import_of_a_misspelt_name": (
        "silver/readings.py:3: imports 'Tabel', which include.spec has not: did you mean 'Table'?",
    ),
    "indented_with_tabs": ("silver/readings.py:8: is indented with tabs here and with spaces elsewhere: use spaces",),
    "indented_wrongly": (
        "silver/readings.py:5: is indented wrongly (unexpected indent): bring that line in line with those around it",
    ),
    "keyword_is_misspelt": ("silver/readings.py:5: Table has no 'shedule': did you mean 'schedule'?",),
    "keyword_of_a_rule_is_misspelt": ("silver/readings.py:11: not_null has no 'otherwize': did you mean 'otherwise'?",),
    "keyword_of_delta_is_misspelt": ("silver/readings.py:8: Delta has no 'max_file': did you mean 'max_files'?",),
    "keyword_of_upsert_is_misspelt": ("silver/readings.py:10: Upsert has no 'key': did you mean 'keys'?",),
    "layer_cannot_be_imported": (
        "silver/__init__.py:3: imports 'not_there_at_all', which is not installed: fix the name, or add it to "
        "requirements.txt and run `make lock`",
    ),
    "second_table": (
        "silver/readings.py: declares 'silver.others', too, and a file is one table, so nothing would run of it: move "
        "it to silver/others.py",
    ),
    "second_table_in_a_list": (
        "silver/readings.py: declares 'gold.first', too, and a file is one table, so nothing would run of it: move it "
        "to gold/first.py",
    ),
    "name_is_not_defined": ("silver/readings.py:11: 'SCHEMAS' is not defined: did you mean 'SCHEMA'?",),
    "name_is_not_its_path": (
        "silver/readings.py: name is 'silver.reading', which is not its path: call it 'silver.readings'",
    ),
    "name_with_a_capital": (
        "silver/Readings.py: 'Readings' is no name for a table, as SQL, paths and DAG ids have to say it: use "
        "small letters, digits and _",
    ),
    "name_with_a_dash": (
        "silver/my-readings.py: 'my-readings' is no name for a table, as SQL, paths and DAG ids have to say it: "
        "use small letters, digits and _",
    ),
    "no_comment": ("silver/readings.py:5: Table lacks 'comment': add it",),
    "no_table": ("silver/readings.py: has no `TABLE = Table(...)`: add it, or move the file out of the tables",),
    "no_utf8": ("silver/readings.py:5: is not UTF-8 (byte 0xe9): save the file as UTF-8",),
    "password_of_a_broker_as_an_option": (
        "bronze/events.py:8: Kafka has no 'options', and a table file is no place for credentials: put them into the "
        "properties file or the Airflow connection of a cluster, and write cluster='...'",
    ),
    "rule_over_nothing": (
        "silver/readings.py:11: cannot be imported (ValueError: a rule over nothing: name a column, or a value): "
        "fix that line",
    ),
    "several_files_are_wrong": (
        "silver/others.py:3: imports 'not_there_at_all', which is not installed: fix the name, or add it to "
        "requirements.txt and run `make lock`",
        "silver/readings.py: cluster_by names 'ofset', no column of its schema: did you mean 'offset'?",
    ),
    "syntax_error": ("silver/readings.py:5: is no Python ('(' was never closed): fix that line",),
    "table_beside_the_layers": (
        "readings.py: lies in no layer, so it would be ignored: move it to one of bronze, silver, gold",
    ),
    "table_by_position": ("silver/readings.py:5: Table takes its values by name: write Table(name=...)",),
    "table_is_another_thing": (
        "silver/readings.py: has no `TABLE = Table(...)`: add it, or move the file out of the tables",
    ),
    "unknown_layer": (
        "sliver/readings.py: lies in no layer, so it would be ignored: move it to one of bronze, silver, gold",
    ),
    "unknown_source": (
        "silver/readings.py: source is 'bronze.event', which no file declares: did you mean 'bronze.events'?",
    ),
    "wrong_argument": (
        "silver/readings.py:5: Table has no 'retention': there are name, source, comment, schema, parse, "
        "lookups, transform, python, write, expect, maintain, schedule, interval_seconds, fresh_minutes, driver, "
        "temporary, "
        "owner, cluster_by, partition_by, time_column, subject, reset_allowed, properties, personal, "
        "not_personal, pseudonymise",
    ),
}


def package_of(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    unreadable_files = list((MISTAKES / case).rglob("*.py.txt"))
    if not unreadable_files:
        return f"tests.mistakes.{case}"
    shutil.copytree(MISTAKES / case, tmp_path / case)
    for file in unreadable_files:
        target = tmp_path / file.relative_to(MISTAKES)
        target.rename(target.with_suffix(""))
    monkeypatch.syspath_prepend(tmp_path)
    return case


def package_with(tables: tuple[Table, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the catalog find a file for each of these tables in one package."""
    paths = sorted(f"{table.name.replace('.', '/')}.py" for table in tables)
    monkeypatch.setattr(table_files, "find", lambda packages: [TableFile(*packages, path) for path in paths])
    for table in tables:
        module = ModuleType(f"{IN_MEMORY}.{table.name}")
        module.TABLE = table
        for loaded_module in (ModuleType(f"{IN_MEMORY}.{table.layer}"), module):
            monkeypatch.setitem(sys.modules, loaded_module.__name__, loaded_module)
    return IN_MEMORY


def error_lines(package: str) -> list[str]:
    with pytest.raises(DeclarationError) as refusal:
        catalog.require(package)
    return str(refusal.value).splitlines()


@pytest.mark.parametrize("case", SENTENCES)
def test_a_wrong_table_file_is_refused_in_exact_sentences(case: str, tmp_path, monkeypatch):
    package = package_of(case, tmp_path, monkeypatch)
    folder = package.replace(".", "/")
    assert error_lines(package) == [f"{folder}/{sentence}" for sentence in SENTENCES[case]]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_wrong_definition_is_refused_in_exact_sentences(case: Case, monkeypatch):
    package = package_with(case.tables, monkeypatch)
    assert error_lines(package) == [f"{package}/{sentence}" for sentence in case.sentences]


def test_the_definitions_of_which_the_wrong_ones_are_made_are_right(monkeypatch):
    assert set(catalog.require(package_with(GOOD, monkeypatch)).tables) == {table.name for table in GOOD}


def test_names_in_a_list_are_as_good_as_names_in_a_tuple(monkeypatch):
    table_with_list = replace(READINGS, write=Append(unique=["key", "offset"]))
    package = package_with((EVENTS, table_with_list), monkeypatch)
    assert list(catalog.require(package).tables) == ["bronze.events", "silver.readings"]


def test_every_directory_of_mistakes_has_its_test():
    directories = {entry.name for entry in MISTAKES.iterdir() if entry.is_dir() and not entry.name.startswith("_")}
    assert directories == set(SENTENCES)


def test_every_mistake_has_a_name_of_its_own():
    names = [*SENTENCES, *(case.name for case in CASES)]
    assert len(names) == len(set(names))
