"""The description, owner, tags and documentation of each DAG, and what its file costs to parse."""

import subprocess
import sys
from dataclasses import replace

from airflow.dag_processing.dagbag import DagBag

from include import catalog
from include.airflow import assets
from include.settings import settings
from include.spec import Kafka, Table
from tests.conftest import ROOT

VERBS = {"backfill", "full_refresh", "maintain", "refresh"}
# A table whose rows no job makes again.
UNCHANGED = {"bronze.tracker_events"}
VIEW, SOURCE = "gold.heart_rate_by_day", "gold.heart_rate_by_model"
# Prints the modules that the DAG files import of this repository, beyond those that Airflow's process has.
PARSE = """
import runpy, sys
from pathlib import Path
sys.path.insert(0, "plugins")
sys.argv = ["airflow", "dag-processor"]
import sluice
imported = set(sys.modules)
for file in Path("dags").glob("*.py"):
    runpy.run_path(str(file))
print(*(name for name in sys.modules.keys() - imported if name.startswith("include.") and "tables" not in name))
"""


def test_each_dag_says_what_it_does_to_which_table_and_who_answers_for_it(dags):
    tables = catalog.load().tables
    for dag_id, dag in dags.items():
        verb, _, table_name = dag_id.partition(".")
        assert dag.description.endswith(".") and "\n" not in dag.description and "$" not in dag.doc_md, dag_id
        if verb not in VERBS or not table_name:
            assert (dag.owner, dag.tags) == ("sluice", {verb.replace("_", " "), "sluice"}), dag_id
            continue
        table = tables[table_name]
        assert table_name in dag.description
        assert f"Deprecated: trigger {verb} and name the table" in dag.description
        assert dag.owner == (table.owner or "sluice")
        assert dag.tags == {verb.replace("_", " "), table.layer, table_name, "sluice"}
        assert f"""airflow dags trigger {verb} -c '{{"table": "{table_name}\"""" in dag.doc_md
        assert [other_name for other_name in tables if other_name in dag.doc_md.replace(table_name, "")] == []


def test_one_dag_serves_a_verb_for_all_tables(monkeypatch, airflow_database):
    monkeypatch.setenv("SLUICE_DAG_PER_TABLE", "off")
    settings.cache_clear()
    try:
        bag = DagBag(str(ROOT / "dags"))
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert bag.import_errors == {}
    assert bag.dags.keys() == {*VERBS, "control.stream", "replay", "rewind", "supervise"}
    for verb, refused in (("maintain", set()), ("backfill", UNCHANGED), ("full_refresh", UNCHANGED)):
        choice = bag.dags[verb].params.get_param("table").schema["enum"]
        assert {*choice} - {None} <= catalog.load().tables.keys() - refused
    # An Airflow that is off for a night must not start a run for each hour.
    assert all(not dag.catchup for dag in bag.dags.values())


def test_a_view_that_follows_tables_has_a_dag_of_its_own_that_their_new_rows_start(monkeypatch, airflow_database):
    tables = catalog.load()
    view = replace(tables.table(VIEW), schedule=(SOURCE,))
    changed = catalog.Catalog({**tables.tables, VIEW: view})
    monkeypatch.setattr(catalog, "load", lambda: changed)
    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    assert [asset.uri for asset in bag.dags[f"refresh.{VIEW}"].schedule.objects] == [assets.uri(SOURCE)]
    assert VIEW not in bag.dags["refresh"].schedule.crons


def test_a_table_with_an_owner_and_a_name_longer_than_a_tag_may_be_has_its_dags(monkeypatch, airflow_database):
    name = f"bronze.{'o' * 120}"
    table = Table(name=name, comment="", source=Kafka("orders"), owner="shop team", reset_allowed=True)
    monkeypatch.setattr(catalog, "load", lambda: catalog.Catalog({name: table}))
    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    for verb in ("maintain", "full_refresh"):
        dag = bag.dags[f"{verb}.{name}"]
        assert dag.owner == "shop team"
        assert f"{name[:99]}…" in dag.tags


def test_the_dag_processor_has_imported_what_the_dag_files_import_before_it_forks_for_each():
    result = subprocess.run([sys.executable, "-c", PARSE], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []
