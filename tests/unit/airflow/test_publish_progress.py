"""The supervisor publishes progress each minute, and no failure of it stops the supervisor."""

import json
import time
from pathlib import Path

import pytest

from include.airflow.supervisor import reconcile
from include.control.store import database, schema
from include.settings import settings
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset

SILVER, BRONZE = "silver.tracker_readings", "bronze.tracker_events"


@pytest.fixture(autouse=True)
def begun(home: Path, own_settings, silent_port: int) -> None:
    """Two flows have committed a batch. Neither the broker nor a receiver answers."""
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}")
    lake.rows(SILVER, time.time(), 5, flow=SILVER, generation=1, batch=4, source_to=delta_offset(1))
    checkpoint(BRONZE, {"tracker-events": {"0": 1}})


def test_what_cannot_be_mirrored_is_said_and_lineage_is_told_all_the_same(home: Path, caplog):
    reconcile.publish_all()
    output = caplog.text
    assert f"sluice.{BRONZE} is not mirrored: the broker at {settings().kafka} took no offsets" in output
    assert f"{SILVER}: lineage of batch 1/4" in output
    [event] = (home / "lineage" / "events.ndjson").read_text().splitlines()
    assert json.loads(event)["job"]["name"] == SILVER


def test_whatever_fails_there_is_in_the_log_alone(home: Path, monkeypatch, own_settings, caplog):
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_REGION": "eu-west-1"}
    own_settings(SLUICE_CATALOG="glue", AWS_ENDPOINT_URL_GLUE="http://127.0.0.1:1", **keys)
    reconcile.publish_all()
    assert "OPENLINEAGE_URL is http://127.0.0.1:1, which takes no event" in caplog.text
    assert "the catalog at http://127.0.0.1:1 does not answer (EndpointConnectionError): check" in caplog.text
    (home / "lineage").rmdir()
    (home / "lineage").write_text("somebody's file")
    reconcile.publish_all()
    assert "FileExistsError" in caplog.text


def test_stored_tables_get_their_names_in_the_catalog_and_what_is_refused_is_said(prefix: str, caplog):
    reconcile.publish_all()
    assert f"{SILVER}: entry {prefix}{SILVER} of the catalog created" in caplog.text
    with database.transaction(database.connect(settings().control_url)) as connection:
        connection.execute(schema.platforms.delete())
    reconcile.publish_all()
    assert f"{SILVER}: {prefix}{SILVER} is in the catalog already, registered by the platform" in caplog.text
