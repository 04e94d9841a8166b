"""Prometheus can parse the metrics of a handmade lake, and docs/reference/metrics.md lists all of them."""

import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from include.catalog import Catalog
from include.control.store import database
from include.monitoring import prometheus, snapshot
from include.monitoring.snapshot import FlowSnapshot, Snapshot
from include.settings import settings
from include.spec import Delta, Expect, Flow, Kafka
from tests.conftest import ROOT, free_port
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset
from tests.support.waiting import wait_until

BRONZE = Flow(name="bronze.events", source=Kafka("events"), comment="")
SILVER = Flow(
    name="silver.readings",
    source=Delta("bronze.events"),
    comment="",
    fresh_minutes=5,
    expect=(Expect("known", "number IS NOT NULL"),),
)


@pytest.fixture(autouse=True)
def silent_broker(home, own_settings, silent_port):
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}", SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")


@pytest.fixture
def made() -> CollectorRegistry:
    return prometheus.registry(Catalog({BRONZE.name: BRONZE, SILVER.name: SILVER}))


def test_every_sample_is_as_the_status_has_it_and_what_is_unknown_has_none(made: CollectorRegistry):
    current_time = time.time()
    for count in (10, 20, 40):
        lake.rows(BRONZE.name, current_time - 400, count)
    lake.rows(SILVER.name, current_time - 900, 9, flow=SILVER.flow, generation=1, source_to=delta_offset(1))
    lake.rows(SILVER.quarantine, current_time, 3)
    checkpoint(SILVER.flow, delta_offset(1), delta_offset(2), is_planned=True)

    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(made).decode())
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float | None:
        return samples.get((name, *sorted(labels.items())))

    flow_labels, table_labels = {"flow": SILVER.flow}, {"table": SILVER.name}
    assert value("sluice_flow_lag_versions", **flow_labels) == 2
    assert value("sluice_flow_lag_rows", **flow_labels) == 60
    assert value("sluice_flow_lag_bytes", **flow_labels) == 200
    assert value("sluice_flow_lag_seconds", **flow_labels) == pytest.approx(400, abs=10)
    assert value("sluice_flow_up", **flow_labels) == 0
    assert value("sluice_flow_wanted", **flow_labels) == 1
    assert value("sluice_flow_batch_in_flight", **flow_labels) == 1
    assert value("sluice_flow_trend", verdict="falling behind", **flow_labels) == 1
    assert value("sluice_flow_trend", verdict="catching up", **flow_labels) == 0
    assert value("sluice_table_rows", **table_labels) == 9
    assert value("sluice_quarantine_rows", **table_labels) == 3
    assert value("sluice_table_promised_age_seconds", **table_labels) == 300
    assert value("sluice_table_age_seconds", **table_labels) == pytest.approx(400, abs=10)
    assert value("sluice_flow_lag_seconds", flow=BRONZE.flow) is None
    assert value("sluice_table_age_seconds", table=BRONZE.name) is None


def test_a_scrape_reads_the_snapshot_and_says_how_old_it_is(made: CollectorRegistry):
    engine = database.connect(settings().control_url)
    with database.reading(engine) as connection:
        now_seconds = database.now(connection)

    def value(name: str, **labels: str) -> float | None:
        return made.get_sample_value(name, labels)

    assert value("sluice_snapshot_age_seconds") is None
    flow = FlowSnapshot(
        *(SILVER.flow, SILVER.name),
        batch_ms=250,
        phases_ms={"add_batch_ms": 200},
        rows_in_per_second=12.5,
        rows_out=7,
        restarts=2,
        lag_seconds=3.0,
    )
    snapshot.store(engine, Snapshot(now_seconds - 30, flows=(flow,)))
    assert value("sluice_snapshot_age_seconds") == pytest.approx(30, abs=20)
    assert value("sluice_flow_input_rows_per_second", flow=SILVER.flow) == 12.5
    assert value("sluice_flow_batch_output_rows", flow=SILVER.flow) == 7
    assert value("sluice_flow_batch_seconds", flow=SILVER.flow) == 0.25
    assert value("sluice_flow_batch_phase_seconds", flow=SILVER.flow, phase="add_batch") == 0.2
    assert value("sluice_flow_restarts", flow=SILVER.flow) == 2
    assert value("sluice_flow_lag_seconds", flow=SILVER.flow) == 3
    snapshot.store(engine, Snapshot(now_seconds - 3600, flows=(flow,)))
    assert value("sluice_snapshot_age_seconds") == pytest.approx(3600, abs=20)
    assert value("sluice_flow_lag_seconds", flow=SILVER.flow) is None


def test_each_name_is_described_and_each_that_is_described_is_there(made: CollectorRegistry):
    documented_names = set(
        re.findall(r"^\| `(sluice_\w+)` \|", (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.MULTILINE)
    )
    assert {family.name for family in made.collect()} == documented_names


def test_the_labels_are_those_that_are_described(made: CollectorRegistry):
    rows = re.findall(
        r"^\| `(sluice_\w+)` \| ([\w, ]*?) ?\|", (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.MULTILINE
    )
    documented_labels = {name: set(labels.split(", ")) - {""} for name, labels in rows}
    lake.rows(BRONZE.name, time.time(), 10)
    for family in made.collect():
        for sample in family.samples:
            assert sample.labels.keys() == documented_labels[sample.name], sample.name


def test_they_are_printed_once_or_served_anew_at_each_scrape():
    command = [sys.executable, "-m", "include.ledger", "metrics"]
    result = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    names = {family.name for family in text_string_to_metric_families(result.stdout)}
    assert "sluice_flow_lag_versions" in names
    port = free_port()
    server = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, env=os.environ, stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline().decode().strip() == f"metrics at http://127.0.0.1:{port}/metrics"

        def rows() -> float | None:
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
            samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
            values = [sample.value for sample in samples if sample.name == "sluice_flow_lag_rows"]
            return values[0] if values else None

        assert rows() is None
        lake.rows("bronze.tracker_events", time.time(), 7)
        wait_until(lambda: rows() == 7, 30)
    finally:
        server.kill()
        server.communicate()


def test_a_port_that_is_taken_is_named(silent_port: int):
    command = [sys.executable, "-m", "include.ledger", "metrics", "--port", str(silent_port)]
    result = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60)
    assert result.returncode == 7
    assert result.stderr.startswith(f"sluice: --port is {silent_port}, where nobody can listen")
