"""What a flow has to read, as its batches, its source and its table show it."""

import json
import time

import pytest

from include.control.flows.scale import Batch, Load
from include.monitoring import load, query_progress
from include.monitoring.load import ARRIVALS_SECONDS
from include.monitoring.query_progress import Journal, gather
from include.spec import Delta, Files, Flow, Kafka
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset
from tests.support.progress_reports import line, report

SOURCE = "bronze.events"
READER = Flow(name="silver.readings", source=Delta(SOURCE), comment="")

pytestmark = pytest.mark.usefixtures("home")


def load_of(flow: Flow) -> Load:
    (only,) = load.measure([flow], timeout_seconds=0.5)
    return only


def write(*lines: str) -> None:
    journal = Journal()
    journal.write(list(lines))
    journal.finish()


def batch_line(batch: int, rows: int, milliseconds: int, executors: int | None, flow: str = READER.flow) -> str:
    durations = {"addBatch": milliseconds - 1, "triggerExecution": milliseconds}
    journaled = json.loads(line(report(batch, numInputRows=rows, durationMs=durations), flow=flow))
    return json.dumps(journaled if executors is None else {**journaled, "executors": executors})


def test_it_counts_the_rows_that_arrived_in_the_last_two_minutes_and_the_unread_ones():
    now = time.time()
    lake.rows(SOURCE, now - 600, 1_000)
    lake.rows(SOURCE, now - 90, 200, 40)
    lake.rows(SOURCE, now - 30, 3_000)
    lake.rows(READER.name, now - 500, 1, flow=READER.flow, generation=1, source_to=delta_offset(1))
    lake.rows(READER.name, now - 60, 1, flow=READER.flow, generation=1, source_to=delta_offset(2))
    checkpoint(READER.flow, delta_offset(1), delta_offset(2))
    measured = load_of(READER)
    assert measured.arrivals == pytest.approx(3_240 / ARRIVALS_SECONDS)
    assert (measured.backlog, measured.parallelism, measured.batches) == (3_000, None, ())


def test_its_batches_are_those_with_rows_and_executors_newest_first():
    write(
        batch_line(1, 100, 1_500, 1),
        batch_line(2, 0, 700, 1),
        batch_line(3, 900, 2_500, 2),
        batch_line(4, 100, 1_500, None),
        batch_line(5, 100, 1_500, 0),
        batch_line(6, 100, 9_000, 1, flow="silver.others"),
    )
    expected = (Batch(900, 2.5, 2), Batch(100, 1.5, 1))
    assert load_of(READER).batches == expected
    gather()
    assert load_of(READER).batches == expected


def test_a_progress_table_of_an_older_build_has_no_executors(monkeypatch):
    older = query_progress.SCHEMA.remove(query_progress.SCHEMA.get_field_index("executors"))
    with monkeypatch.context() as patched:
        patched.setattr(query_progress, "SCHEMA", older)
        write(batch_line(1, 100, 1_500, None))
        gather()
    assert load_of(READER).batches == ()
    write(batch_line(2, 300, 1_500, 3))
    assert load_of(READER).batches == (Batch(300, 1.5, 3),)
    gather()
    assert load_of(READER).batches == (Batch(300, 1.5, 3),)


@pytest.mark.parametrize("source", [Kafka("events"), Files("landed", format="json"), Delta(SOURCE)])
def test_what_is_not_known_is_none(source, silent_port, own_settings):
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}")
    measured = load_of(Flow(name="bronze.other", source=source, comment=""))
    assert (measured.arrivals, measured.backlog) == (None, None)
