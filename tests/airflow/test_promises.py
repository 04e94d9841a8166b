"""A broken freshness promise raises an alarm, also for a view, which has no stream."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from include.airflow.supervisor import reconcile, source_health
from include.catalog import Catalog
from include.control.flows import incidents
from include.control.jobs import backfills, store
from include.control.store import database
from include.control.supervision.supervision import SourceHealth
from include.project.ranges import Slice
from include.spec import Delta, Files, Replace, Table
from tests.support import lake
from tests.unit.conftest import home, own_settings  # noqa: F401

BRONZE = Table(name="bronze.orders", comment="", source=Files("orders", format="csv"))
VIEW = Table(
    name="gold.orders",
    comment="",
    source=Delta("bronze.orders"),
    schema="number BIGINT",
    transform="SELECT number FROM source",
    write=Replace(),
    fresh_minutes=30,
)
TABLES = Catalog({table.name: table for table in (BRONZE, VIEW)})
HOUR = 3600.0


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return database.connect(f"sqlite:///{tmp_path / 'control.db'}")


def settle(engine: Engine, health: dict[str, SourceHealth]) -> list[str]:
    """Settle the promises. Returns the reasons of the failed tasks."""
    return [task["reason"] for task in reconcile._settle_promises(engine, TABLES, health)]


def test_a_view_that_has_not_shown_the_rows_of_an_hour_ago_breaks_a_promise_of_half_an_hour(engine, home):  # noqa: F811
    lake.rows(BRONZE.name, time.time() - HOUR, 3)
    reason = source_health.look(engine, TABLES)[VIEW.name].not_fresh
    assert reason
    assert reason.startswith("what it lacks is 60.0 min old, promised 30 min")
    longer_promise = Catalog({BRONZE.name: BRONZE, VIEW.name: replace(VIEW, fresh_minutes=90)})
    assert VIEW.name not in source_health.look(engine, longer_promise)


def test_the_alarm_of_a_view_lasts_until_its_promise_is_kept_again(engine):
    reasons = settle(engine, {VIEW.name: SourceHealth(not_fresh="12 min old")})
    assert reasons == ["NOT FRESH: 12 min old. Next: docs/runbooks/not-fresh.md"]
    assert [notice.first.state for notice in incidents.unsent(engine)] == ["NOT FRESH"]
    assert settle(engine, {}) == []
    assert incidents.open_of(engine, VIEW.name) is None


def test_a_view_that_is_late_by_a_flow_above_it_is_part_of_the_alarm_of_that_flow(engine):
    with database.transaction(engine) as connection:
        incidents.begin(connection, BRONZE.name, "BROKEN", "its files are damaged")
    [notice] = incidents.unsent(engine)
    incidents.mark_sent(engine, notice)
    health = reconcile._with_causes(engine, TABLES, {VIEW.name: SourceHealth(not_fresh="12 min old")})
    settle(engine, health)
    assert incidents.unsent(engine) == []
    with database.transaction(engine) as connection:
        incidents.end(connection, BRONZE.name)
    assert incidents.unsent(engine) == []
    settle(engine, {})
    [notice] = incidents.unsent(engine)
    assert (notice.is_over, sorted(notice.subjects)) == (True, [BRONZE.name, VIEW.name])


def test_a_job_that_failed_is_an_alarm_until_it_is_done(engine, monkeypatch):
    monkeypatch.setattr(store, "AGAIN_SECONDS", 0)
    backfill = backfills.begin(engine, VIEW.name, Slice(), "ada")
    store.record_failure(engine, backfill, "no space left")
    [task] = reconcile._settle_jobs(engine)
    assert (task["flow"], task["reason"].split(".")[0]) == ("backfill 1", "JOB FAILED: no space left")
    assert [notice.first.target for notice in incidents.unsent(engine)] == ["job backfill 1"]
    store.finish(engine, backfill, "done by hand")
    assert reconcile._settle_jobs(engine) == []
    assert incidents.open_of(engine, "job backfill 1") is None


def test_the_alarm_of_a_view_that_is_acknowledged_is_no_red_task(engine):
    health = {VIEW.name: SourceHealth(not_fresh="12 min old")}
    settle(engine, health)
    with database.transaction(engine) as connection:
        assert incidents.acknowledge(connection, VIEW.name, "ada", "known", hours=1)
    assert settle(engine, health) == []
