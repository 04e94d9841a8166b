"""The supervisor detects problems of a flow's source before records are lost."""

import time
from dataclasses import replace

import pytest

from include.airflow.supervisor import source_health
from include.catalog import Catalog
from include.control.supervision import lag_history
from include.control.supervision.supervision import SourceHealth
from include.delta.table_logs import TableLogs
from include.kafka import cluster
from include.lake import locations
from include.monitoring import rejected_rows
from include.settings import settings
from include.spec import Append
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("behind", "grows"),
    [
        ([100] * 8, False),
        ([10, 20, 30, 40, 50, 60, 70, 80], True),
        ([10, 90, 10, 90, 10, 90, 10, 90], False),
        ([80, 70, 60, 50, 40, 30, 20, 10], False),
        ([10, 20, 30, 40, 50, 60, 70], False),
    ],
    ids=["steady", "growing", "saw-tooth", "catching up", "too few to tell"],
)
def test_a_flow_falls_behind_when_its_backlog_grows_and_does_not_come_back(behind: list[int], grows: bool):
    assert lag_history.is_growing(behind) is grows


def test_unread_records_raise_the_alarm_long_before_kafka_deletes_them(chain, topic, run_once, engine):
    topic.create(retention_ms="3600000").send(1, 2)
    run_once(chain.bronze)
    assert source_health.look(engine, Catalog({chain.bronze.name: chain.bronze})) == {chain.bronze.name: SourceHealth()}
    topic.send(3)
    assert source_health.look(engine, Catalog({chain.bronze.name: chain.bronze}))[chain.bronze.name].expires is None
    topic.configure(retention_ms="1000")

    def expires() -> str:
        return source_health.look(engine, Catalog({chain.bronze.name: chain.bronze}))[chain.bronze.name].expires or ""

    partition = f"topic '{topic.name}', partition 0,"
    wait_until(lambda: expires().startswith(f"Kafka deletes unread records of {partition} in 0.0 h: "), 30)


def test_a_broker_that_is_away_is_what_its_flows_wait_for_and_no_other(chain, topic, run_once, engine, monkeypatch):
    topic.create().send(1, 2)
    run_once(chain.bronze, chain.silver)
    unreachable_broker = replace(settings(), kafka="127.0.0.1:1")
    monkeypatch.setattr(cluster, "settings", lambda: unreachable_broker)
    health_by_flow = source_health.look(engine, Catalog({table.name: table for table in (chain.bronze, chain.silver)}))
    assert "127.0.0.1:1, where no Kafka broker answers" in health_by_flow[chain.bronze.name].waits_for
    assert health_by_flow[chain.silver.name] == SourceHealth()


def test_a_flow_that_never_ran_or_whose_checkpoint_is_damaged_does_not_stop_the_others(chain, topic, run_once, engine):
    topic.create().send(1, 2)
    run_once(chain.bronze)
    [newest_offsets] = (locations.checkpoints(chain.bronze.name) / "1" / "offsets").glob("[0-9]")
    newest_offsets.write_bytes(b"")
    health_by_flow = source_health.look(engine, Catalog({table.name: table for table in (chain.bronze, chain.silver)}))
    assert set(health_by_flow.values()) == {SourceHealth()}


def test_rows_of_a_flow_that_all_repeat_stored_ones_are_an_alarm(chain, topic, run_once):
    silver = replace(chain.silver, write=Append(unique=("number",), first_by=("offset",)))
    one_hour_later = time.time() + 3_600
    topic.create().send(*range(150))
    run_once(chain.bronze, silver)
    assert rejected_rows.of(silver, TableLogs().get(silver.name), one_hour_later, is_known=False) is None
    topic.send(*range(150))
    run_once(chain.bronze, silver)
    assert (
        rejected_rows.of(silver, TableLogs().get(silver.name), one_hour_later, is_known=False)
        == "of the newest 150 rows 0 were written: 150 repeated"
    )
