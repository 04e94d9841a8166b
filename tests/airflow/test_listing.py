"""The description, owner, tags and documentation of each DAG, and what its file costs to parse."""

import subprocess
import sys

from airflow.dag_processing.dagbag import DagBag

from include import catalog
from include.spec import Kafka, Table
from tests.conftest import ROOT

VERBS = {"backfill", "full_refresh", "maintain", "refresh"}
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
        if verb not in VERBS:
            assert (dag.owner, dag.tags) == ("sluice", {verb, "sluice"}), dag_id
            continue
        table = tables[table_name]
        assert table_name in dag.description
        assert dag.owner == (table.owner or "sluice")
        assert dag.tags == {verb.replace("_", " "), table.layer, table_name, "sluice"}
        assert f"airflow dags trigger {dag_id}\n" in dag.doc_md or f"airflow dags trigger {dag_id} -c" in dag.doc_md
        assert [other_name for other_name in tables if other_name in dag.doc_md.replace(table_name, "")] == []


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
