"""`refresh` of a materialized view, run as Airflow runs it."""

import os
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from include import catalog
from include.control import first_loads
from include.control.first_loads import Awaited
from include.control.store import database
from include.delta.delta_log import DeltaLog
from include.flows.refreshes import of_commit
from include.lake import locations
from include.monitoring.first_load import VIEW_LIFE
from include.settings import from_environment, settings

VIEW, SOURCE = "gold.heart_rate_by_day", "gold.heart_rate_by_model"


def test_every_view_has_the_schedule_it_declares_and_no_other_table_can_be_refreshed(dags):
    views = catalog.load().views
    assert VIEW in views
    refresh = dags["refresh"]
    assert refresh.schedule.crons == {name: view.schedule for name, view in views.items()}
    assert set(refresh.params.get_param("table").schema["enum"]) == {None, *views}
    assert {f"refresh.{name}" for name in views} == {name for name in dags if name.startswith("refresh.")}
    for dag in (refresh, *(dags[f"refresh.{name}"] for name in views)):
        [task] = dag.tasks
        assert (dag.catchup, task.durable) == (False, False)


def minute(model: str, time: str, readings: int, average: float, kcal: str) -> dict:
    minute_start = datetime.fromisoformat(time).replace(tzinfo=UTC)
    lowest, highest = int(average) - 5, int(average) + 5
    return {
        "model": model,
        "minute": minute_start,
        "readings": readings,
        "avg_heart_bpm": average,
        "min_heart_bpm": lowest,
        "max_heart_bpm": highest,
        "kcal": Decimal(kcal),
    }


def test_a_view_whose_source_is_not_stored_is_skipped_with_a_sentence_and_its_dag_is_not_red(
    dags, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    try:
        run = dags["refresh"].test(run_conf={"table": VIEW})
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert run.state == "success"
    assert [task.state for task in run.get_task_instances()] == ["skipped"]
    output = "".join(capfd.readouterr())
    assert f"{VIEW}: not refreshed, and left as it was: {SOURCE}, which it reads, holds no rows yet; it comes" in output


def test_the_shipped_view_is_refreshed_in_one_commit_that_bears_the_id_of_the_dag_run(tmp_path, dags, at_home):
    config = from_environment({"SLUICE_HOME": str(tmp_path), "SLUICE_JARS": os.environ["SLUICE_JARS"]})
    rows = [
        minute("band", "2026-03-01T23:58", 10, 60.0, "1.500"),
        minute("band", "2026-03-01T23:59", 30, 80.0, "2.000"),
        minute("band", "2026-03-02T00:00", 5, 90.0, "0.250"),
    ]
    types = pa.schema(
        [
            ("model", pa.string()),
            ("minute", pa.timestamp("us", "UTC")),
            ("readings", pa.int64()),
            ("avg_heart_bpm", pa.float64()),
            ("min_heart_bpm", pa.int32()),
            ("max_heart_bpm", pa.int32()),
            ("kcal", pa.decimal128(19, 3)),
        ]
    )
    write_deltalake(str(locations.table_path(SOURCE, config)), pa.Table.from_pylist(rows, types))
    at_home(config)
    # Nobody has loaded the tables of this home.
    above = [Awaited(flow, is_read=True) for flow in ("bronze.tracker_events", "silver.tracker_readings", SOURCE)]
    first_loads.record(database.connect(config.control_url), VIEW, VIEW_LIFE, above)
    assert dags[f"refresh.{VIEW}"].test().state == "success"
    view = DeltaTable(str(locations.table_path(VIEW, config)))
    view_rows = {(row["model"], row["day"]): row for row in view.to_pyarrow_table().to_pylist()}
    assert view_rows.keys() == {("band", date(2026, 3, 1)), ("band", date(2026, 3, 2))}
    first_day = view_rows["band", date(2026, 3, 1)]
    assert (first_day["readings"], first_day["avg_heart_bpm"], first_day["kcal"]) == (40, 75.0, Decimal("3.500"))
    assert (first_day["min_heart_bpm"], first_day["max_heart_bpm"]) == (55, 85)
    log = DeltaLog(locations.table_path(VIEW, config))
    assert log.versions == [0]
    refresh = of_commit(log.commit(0))
    assert refresh and refresh.run.startswith("manual__")
    assert refresh.read == {SOURCE: 0}
