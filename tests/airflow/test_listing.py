"""What Airflow's list of DAGs, and the page of each, say of it."""

from airflow.dag_processing.dagbag import DagBag

from include import catalog
from include.spec import Kafka, Table
from tests.conftest import ROOT

VERBS = {"backfill", "full_refresh", "maintain", "refresh"}


def test_each_dag_says_what_it_does_to_which_table_and_who_answers_for_it(dags):
    tables = catalog.load().tables
    for name, dag in dags.items():
        verb, _, of = name.partition(".")
        assert dag.description.endswith(".") and "\n" not in dag.description and "$" not in dag.doc_md, name
        if verb not in VERBS:
            assert (dag.owner, dag.tags) == ("sluice", {verb, "sluice"}), name
            continue
        table = tables[of]
        assert of in dag.description
        assert dag.owner == (table.owner or "sluice")
        assert dag.tags == {verb.replace("_", " "), table.layer, of, "sluice"}
        assert f"airflow dags trigger {name}\n" in dag.doc_md or f"airflow dags trigger {name} -c" in dag.doc_md
        assert [other for other in tables if other in dag.doc_md.replace(of, "")] == []


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
