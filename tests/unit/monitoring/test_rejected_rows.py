"""A flow that suddenly rejects its rows raises an alarm. A flow that always drops most rows does not."""

from pathlib import Path

import pytest

from include.delta.delta_log import DeltaLog
from include.lake import locations
from include.monitoring import rejected_rows
from include.spec import Delta, Expect, Flow
from tests.support import lake
from tests.support.flows import declared

NOW = 1_800_000_000.0
TABLE = Flow(
    name="silver.orders",
    comment="",
    source=Delta("bronze.orders"),
    schema="number BIGINT",
    expect=(Expect("given", "number IS NOT NULL"),),
)


@pytest.fixture
def history(home: Path):
    """Commit a batch every ten seconds up to `NOW`, each with its rows: (read, written, quarantined)."""

    def write(*batches: tuple[int, int, int], flow: str = TABLE.name) -> None:
        for number, (read, written, quarantined) in enumerate(batches):
            committed_at = NOW - 10 * (len(batches) - number)
            rows = {"read": read, "kept": read - quarantined, "quarantined": quarantined, "dropped": 0, "broke": {}}
            metadata = {"flow": flow, "generation": 1, "batch": number, "rows": rows}
            data = [lake.data(f"{number}", written, committed_at)] if written else []
            lake.write(TABLE.name, committed_at, *data, written=written, **metadata)

    return write


def log() -> DeltaLog:
    return DeltaLog(locations.table_path(TABLE.name))


def alarm_text(is_known: bool = False) -> str | None:
    return rejected_rows.of(TABLE, log(), NOW, is_known)


GOOD, REPEATED, BAD = (50, 50, 0), (50, 0, 0), (50, 1, 49)
# Batches of a flow with a rule that always filters out most rows.
FILTERED = (50, 2, 48)


def test_rows_that_all_repeat_stored_ones_are_an_alarm(history):
    history(*[GOOD] * 20, *[REPEATED] * 60)
    assert alarm_text() == "of the newest 3,000 rows 0 were written: 3,000 repeated"


def test_rows_that_nearly_all_break_a_rule_are_an_alarm(history):
    history(*[GOOD] * 20, *[BAD] * 60)
    assert alarm_text() == "of the newest 3,000 rows 60 were written: 2,940 quarantined"


def test_fewer_than_a_hundred_rows_say_nothing(history):
    history(*[GOOD] * 20, (50, 0, 50))
    assert alarm_text() is None


def test_ten_minutes_have_to_be_that_way(history):
    history(*[GOOD] * 100, *[REPEATED] * 10)
    assert alarm_text() is None


def test_a_flow_that_has_always_dropped_most_rows_is_no_alarm(history):
    history(*[FILTERED] * 200)
    assert alarm_text() is None


def test_a_first_batch_is_none(history):
    history((1_000, 0, 1_000))
    assert alarm_text() is None


def test_an_alarm_lasts_although_the_past_is_all_rejected_by_now_and_ends_when_rows_pass(history):
    history(*[REPEATED] * 400)
    assert alarm_text() is None
    assert alarm_text(is_known=True) is not None
    history(*[GOOD] * 2)
    assert alarm_text(is_known=True) is None


def test_each_flow_of_a_table_counts_for_itself(history):
    history(*[GOOD] * 20, *[REPEATED] * 60, flow="silver.orders.eu")
    table = declared(TABLE, source={"": Delta("bronze.orders"), "eu": Delta("bronze.orders_eu")})
    alarm_texts = {flow.flow: rejected_rows.of(flow, log(), NOW, is_known=False) for flow in table.flows}
    assert alarm_texts == {
        "silver.orders": None,
        "silver.orders.eu": "of the newest 3,000 rows 0 were written: 3,000 repeated",
    }


def test_a_table_that_checks_no_rows_is_not_read_back_to_its_beginning(history):
    history(*[GOOD] * 20, *[REPEATED] * 60)
    lake.write(TABLE.name, NOW, written=50, flow=TABLE.name, generation=1, batch=80)
    first = locations.table_path(TABLE.name) / "_delta_log" / f"{0:020}.json"
    first.write_text("damaged")
    assert alarm_text() is None
