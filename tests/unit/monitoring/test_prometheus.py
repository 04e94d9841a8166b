"""What Prometheus scrapes, as it parses it, over a lake made by hand; and that docs/metrics.md names it all."""

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
from include.monitoring import prometheus
from include.spec import Delta, Expect, Kafka, Table
from tests.conftest import ROOT, free_port
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset
from tests.support.waiting import wait_until

BRONZE = Table(name="bronze.events", source=Kafka("events"), comment="")
SILVER = Table(
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
    now = time.time()
    for count in (10, 20, 40):
        lake.rows(BRONZE.name, now - 400, count)
    lake.rows(SILVER.name, now - 900, 9, flow=SILVER.flow, generation=1, source_to=delta_offset(1))
    lake.rows(SILVER.quarantine, now, 3)
    checkpoint(SILVER.flow, delta_offset(1), delta_offset(2), is_planned=True)

    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(made).decode())
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float | None:
        return samples.get((name, *sorted(labels.items())))

    of_flow, of_table = {"flow": SILVER.flow}, {"table": SILVER.name}
    assert value("sluice_flow_lag_versions", **of_flow) == 2
    assert value("sluice_flow_lag_rows", **of_flow) == 60
    assert value("sluice_flow_lag_bytes", **of_flow) == 200
    assert value("sluice_flow_lag_seconds", **of_flow) == pytest.approx(400, abs=10)
    assert value("sluice_flow_up", **of_flow) == 0
    assert value("sluice_flow_wanted", **of_flow) == 1
    assert value("sluice_flow_batch_in_flight", **of_flow) == 1
    assert value("sluice_flow_trend", verdict="falling behind", **of_flow) == 1
    assert value("sluice_flow_trend", verdict="catching up", **of_flow) == 0
    assert value("sluice_table_rows", **of_table) == 9
    assert value("sluice_quarantine_rows", **of_table) == 3
    assert value("sluice_table_promised_age_seconds", **of_table) == 300
    assert value("sluice_table_age_seconds", **of_table) == pytest.approx(400, abs=10)
    assert value("sluice_flow_lag_seconds", flow=BRONZE.flow) is None
    assert value("sluice_table_age_seconds", table=BRONZE.name) is None


def test_each_name_is_described_and_each_that_is_described_is_there(made: CollectorRegistry):
    described = set(re.findall(r"^\| `(sluice_\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    assert {family.name for family in made.collect()} == described


def test_the_labels_are_those_that_are_described(made: CollectorRegistry):
    rows = re.findall(r"^\| `(sluice_\w+)` \| ([\w, ]+) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    described = {name: set(labels.split(", ")) for name, labels in rows}
    lake.rows(BRONZE.name, time.time(), 10)
    for family in made.collect():
        for sample in family.samples:
            assert sample.labels.keys() == described[sample.name], sample.name


def test_they_are_printed_once_or_served_anew_at_each_scrape():
    command = [sys.executable, "-m", "include.ledger", "metrics"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    printed = {family.name for family in text_string_to_metric_families(done.stdout)}
    assert "sluice_flow_lag_versions" in printed
    port = free_port()
    server = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, env=os.environ, stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline().decode().strip() == f"metrics at http://127.0.0.1:{port}/metrics"

        def rows() -> float | None:
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
            samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
            found = [one.value for one in samples if one.name == "sluice_flow_lag_rows"]
            return found[0] if found else None

        assert rows() is None
        lake.rows("bronze.tracker_events", time.time(), 7)
        wait_until(lambda: rows() == 7, 30)
    finally:
        server.kill()
        server.communicate()


def test_a_port_that_is_taken_is_named(silent_port: int):
    command = [sys.executable, "-m", "include.ledger", "metrics", "--port", str(silent_port)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7
    assert done.stderr.startswith(f"sluice: --port is {silent_port}, where nobody can listen")
