"""One run of the supervisor: pages show at once what it has decided, and it lists the log of a table once."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from include import catalog
from include.airflow.launchers import submit
from include.airflow.supervisor import reconcile
from include.control.store import database
from include.delta import delta_log
from include.lake.paths import LakePath
from include.monitoring import new_rows, snapshot
from include.settings import settings
from tests.conftest import free_port
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

BRONZE, FLOW = "bronze.tracker_events", "silver.tracker_readings"


def state() -> str | None:
    newest = snapshot.newest(database.connect(settings().control_url)) or snapshot.Snapshot(0.0)
    return next((flow.state for flow in newest.flows if flow.flow == FLOW), None)


class Reader(list[dict[str, Any]]):
    """Looks at the pages as soon as a message arrives."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []

    def append(self, message: dict[str, Any]) -> None:
        self.seen.append(state())
        super().append(message)


@pytest.fixture
def reader(monkeypatch) -> Iterator[Reader]:
    receiver = Receiver()
    receiver.messages = reader = Reader()
    monkeypatch.setenv("AIRFLOW_CONN_SLUICE_ALERTS", json.dumps({"conn_type": "http", "host": receiver.url}))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield reader
    receiver.stop()


@pytest.fixture(autouse=True)
def drivers(home: Path, own_settings, tmp_path: Path, monkeypatch) -> Path:
    """A driver ends as soon as it is launched, and leaves this file."""
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{free_port()}")
    script, launched = tmp_path / "spark-submit", tmp_path / "launched"
    script.write_text(f"#!/bin/sh\ntouch '{launched}'\n")
    script.chmod(0o755)
    monkeypatch.setattr(submit, "SPARK_SUBMIT", script)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    return launched


def test_a_driver_that_died_is_red_before_the_message_about_it_arrives(reader: Reader, drivers: Path):
    seen = reconcile.Seen()
    reconcile.reconcile_all(seen)
    reconcile.publish_all(seen)
    assert state() == "STARTING"
    wait_until(drivers.exists, 30)

    def is_told() -> bool:
        reconcile.reconcile_all()
        return bool(reader.seen)

    wait_until(is_told, 60)
    assert reader.seen[0] == "BACKING OFF"


def test_lag_rejections_snapshot_lineage_and_assets_share_one_listing_of_a_log(monkeypatch):
    now_seconds = time.time()
    offsets = {"tracker-events": {"0": 1}}
    for count in (10, 20):
        lake.rows(BRONZE, now_seconds, count, flow=BRONZE, generation=1, batch=4, source_to=offsets)
    lake.rows(FLOW, now_seconds, 5, flow=FLOW, generation=1, batch=4, source_to=delta_offset(1))
    checkpoint(FLOW, delta_offset(0))
    listed, list_names = Counter[str](), delta_log.names

    def count_names(directory: LakePath) -> list[str]:
        listed[directory.parent.name] += 1
        return list_names(directory)

    monkeypatch.setattr(delta_log, "names", count_names)
    seen = reconcile.Seen()
    reconcile.reconcile_all(seen)
    reconcile.publish_all(seen)
    found = new_rows.find(database.connect(settings().control_url), catalog.load().tables, table_logs=seen.table_logs)
    assert {(table.table, table.version) for table in found} == {(BRONZE, 1), (FLOW, 0)}
    assert listed == {"tracker_events": 1, "tracker_readings": 1}
