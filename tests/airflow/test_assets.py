"""A user's own DAG runs when a table has new rows: the DAG of the guide, in Airflow's database."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from sqlalchemy import select

from include import catalog
from include.airflow import assets
from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.errors import UsageError
from include.lake import locations
from include.settings import from_environment, settings
from tests.conftest import ROOT
from tests.support import scheduler

GUIDE = ROOT / "docs" / "guides" / "run-your-own-dag.md"
TABLE = "gold.revenue_by_country"


@pytest.fixture
def waiting_dag(dags, tmp_path: Path):
    """The id of the guide's DAG, which Airflow's database knows as if the DAG processor had parsed its file."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    folder = tmp_path / "dags"
    folder.mkdir()
    [source] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (folder / "own.py").write_text(source)
    bag = DagBag(str(folder))
    assert bag.import_errors == {}
    sync_bag_to_db(bag, "dags-folder", None)
    scheduler.notice_assets()
    return "send_revenue"


def schedule_runs(dag_id: str) -> list[list[dict]]:
    """Let the scheduler create the runs that are due. Returns the extras of the events of each run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    scheduler.create_runs()
    with create_session() as session:
        runs = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id)).unique()
        return [[event.extra for event in run.consumed_asset_events] for run in runs]


@pytest.fixture
def supervise(dags, at_home, tmp_path: Path):
    """The DAG of the supervisor, in a home of its own whose flows are all stopped."""
    config = from_environment({"SLUICE_HOME": str(tmp_path / "home")})
    at_home(config)
    engine = database.connect(settings().control_url)
    commands.execute(engine, Command(Action.STOP, tuple(catalog.load().flows), "a test", "no driver is needed here"))
    return dags["supervise"]


def append(count: int) -> None:
    rows = pa.table({"country": ["CH"] * count, "purchases": list(range(count))})
    write_deltalake(str(locations.table_path(TABLE)), rows, mode="append")


def test_a_dag_that_waits_for_a_table_runs_when_it_has_new_rows_and_not_after_a_compaction(supervise, waiting_dag):
    assert supervise.test().state == "success"
    assert schedule_runs(waiting_dag) == [], "the table is not stored yet"
    append(3)
    append(4)
    # No DAG waits for this one.
    other = str(locations.table_path("gold.heart_rate_by_model"))
    write_deltalake(other, pa.table({"model": ["band"]}))
    assert supervise.test().state == "success"
    event = {"table": TABLE, "version": 1, "rows": 4, "offsets": {}}
    assert schedule_runs(waiting_dag) == [[event]]
    DeltaTable(str(locations.table_path(TABLE))).optimize.compact()
    assert supervise.test().state == "success"
    assert schedule_runs(waiting_dag) == [[event]]
    assert event_names() == {assets.uri(TABLE)}


def event_names() -> set[str]:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        return set(session.scalars(select(AssetModel.name).join(AssetEvent, AssetEvent.asset_id == AssetModel.id)))


def test_the_asset_of_a_table_that_no_file_declares_is_refused():
    assert assets.asset(TABLE).uri == "sluice://gold/revenue_by_country"
    with pytest.raises(UsageError, match=r"gold\.revenue_by_county"):
        assets.asset("gold.revenue_by_county")
