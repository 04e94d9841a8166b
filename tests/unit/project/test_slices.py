"""The ranges of tables that can be recomputed, and the messages for all others."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from include import catalog
from include.errors import UsageError
from include.project import ranges
from include.project.ranges import Slice
from include.spec import Append, Bucket, Delta, Table, Upsert
from include.spec.origin import Files, Kafka

SILVER = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, time TIMESTAMP, day DATE",
    time_column="time",
)
GOLD = Table(
    name="gold.by_hour",
    comment="readings",
    source=Delta("silver.readings"),
    schema="hour TIMESTAMP, rows BIGINT",
    write=Upsert(keys=("hour",), recompute=Bucket("hour", of="time", unit="hour")),
)
WITHOUT_BUCKET = replace(GOLD, name="gold.whole", write=Upsert(keys=("hour",)))


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, 1, hour, minute, tzinfo=UTC)


def test_moments_are_iso_8601_and_utc_where_they_name_no_zone():
    parsed_slice = ranges.parse_slice(SILVER, "2026-03-01T01:00", "2026-03-01T04:00:00+02:00")
    assert parsed_slice == Slice(at(1), at(2))
    assert str(parsed_slice) == "from 2026-03-01T01:00:00Z to 2026-03-01T02:00:00Z"
    assert ranges.from_stored_texts(*parsed_slice.texts) == parsed_slice
    assert ranges.parse_slice(SILVER, "2026-03-01", "2026-03-02").begin == at(0)


def test_every_row_is_in_a_range_or_among_the_others():
    day = Slice(at(0), datetime(2026, 3, 2, tzinfo=UTC))
    assert day.condition("day", is_date=True) == "(`day` >= DATE '2026-03-01' AND `day` < DATE '2026-03-02')"
    assert day.others("day", is_date=True) == (
        "(`day` < DATE '2026-03-01' OR `day` >= DATE '2026-03-02' OR `day` IS NULL)"
    )
    hour = Slice(at(1), at(2))
    begin, end = "TIMESTAMP '2026-03-01 01:00:00+00:00'", "TIMESTAMP '2026-03-01 02:00:00+00:00'"
    assert hour.condition("time") == f"(`time` >= {begin} AND `time` < {end})"
    assert hour.others("time") == f"(`time` < {begin} OR `time` >= {end} OR `time` IS NULL)"
    assert (Slice().condition(None), Slice().others(None)) == ("true", "false")


def test_an_aggregate_is_cut_by_whole_buckets_and_one_without_is_not_cut():
    assert ranges.parse_slice(GOLD, "2026-03-01T01:10", "2026-03-01T02:00:01") == Slice(at(1), at(3))
    assert ranges.parse_slice(GOLD, "1969-12-31T23:10", "1970-01-01").begin == datetime(1969, 12, 31, 23, tzinfo=UTC)
    assert ranges.parse_slice(WITHOUT_BUCKET, None, "") == Slice()


@pytest.mark.parametrize(
    ("table", "begin", "end", "sentence"),
    [
        (SILVER, "soon", "2026-03-02", "--from is 'soon', no moment: write one such as 2026-03-01T00:00:00Z"),
        (
            SILVER,
            "2026-03-02",
            "2026-03-02",
            "--from is 2026-03-02, which is not before --to, 2026-03-02: the row at --to is not in the range",
        ),
        (
            SILVER,
            "2026-03-02",
            None,
            "silver.readings is backfilled by ranges of time: name one, --from and --to, or take all, --full",
        ),
        (
            replace(SILVER, time_column="day"),
            "2026-03-01T01:00",
            "2026-03-02",
            "day of silver.readings is a DATE: name whole days, such as --from 2026-03-01",
        ),
        (WITHOUT_BUCKET, "2026-03-01", "2026-03-02", "gold.whole is recomputed as a whole: leave --from and --to out"),
        (
            replace(SILVER, source=Kafka("events")),
            "2026-03-01",
            "2026-03-02",
            "silver.readings cannot be backfilled: it keeps what arrived, and Kafka and folders forget, so nobody "
            "could make its rows again: backfill the tables that read it",
        ),
        (
            replace(SILVER, source={"a": Delta("bronze.events"), "b": Files("files", "csv")}),
            "2026-03-01",
            "2026-03-02",
            "silver.readings cannot be backfilled: it keeps what arrived, and Kafka and folders forget, so nobody "
            "could make its rows again: backfill the tables that read it",
        ),
        (
            replace(SILVER, source=Delta("bronze.events", changes=True)),
            "2026-03-01",
            "2026-03-02",
            "silver.readings cannot be backfilled: it keeps changes, and what has changed is past: backfill "
            "bronze.events, and its changes follow",
        ),
        (
            replace(SILVER, source=Delta("bronze.events", since_version=4)),
            "2026-03-01",
            "2026-03-02",
            "silver.readings cannot be backfilled: since says where it begins, and what it left out is unknown: "
            "take since out first",
        ),
        (
            replace(SILVER, time_column=None),
            "2026-03-01",
            "2026-03-02",
            "silver.readings cannot be backfilled: no time_column says by which column a range of it is cut: declare "
            "it, Table(time_column=...), or make all of it again, --full",
        ),
    ],
)
def test_what_cannot_be_made_again_is_refused_in_one_sentence(table, begin, end, sentence):
    with pytest.raises(UsageError) as error:
        ranges.parse_slice(table, begin, end)
    assert str(error.value) == sentence


def test_what_reads_a_table_follows_by_the_same_time_or_not_at_all():
    replaced_slice = Slice(at(1, 30), at(2))
    reader = replace(SILVER, name="gold.copy", source=Delta("silver.readings"))
    assert ranges.downstream_slice(reader, SILVER, replaced_slice) == replaced_slice
    assert ranges.downstream_slice(GOLD, SILVER, replaced_slice) == Slice(at(1), at(2))
    assert ranges.downstream_slice(WITHOUT_BUCKET, SILVER, replaced_slice) == Slice()
    message = ranges.downstream_slice(replace(reader, time_column="day"), SILVER, replaced_slice)
    assert message == (
        "its ranges are cut by day, and the one that was replaced by time, so nobody can tell which rows of it are "
        "concerned: backfill the range of day that they lie in"
    )
    assert "no time_column" in str(ranges.downstream_slice(replace(reader, time_column=None), SILVER, replaced_slice))


def test_what_reads_a_table_that_is_made_again_as_a_whole_is_so_too():
    reader = replace(SILVER, name="gold.copy", source=Delta("silver.readings"), time_column=None)
    assert ranges.downstream_slice(reader, SILVER, Slice()) == Slice()
    assert ranges.downstream_slice(GOLD, SILVER, Slice()) == Slice()
    reader_since = replace(reader, source=Delta("silver.readings", since="2026-03-01T00:00:00Z"))
    assert "take since out" in str(ranges.downstream_slice(reader_since, SILVER, Slice()))


@pytest.mark.parametrize("table", [SILVER, GOLD, WITHOUT_BUCKET, replace(SILVER, time_column=None)])
def test_all_of_a_table_can_be_made_again(table):
    assert ranges.parse_slice(table, None, None, as_a_whole=True) == Slice()


def test_a_full_refresh_has_no_range():
    with pytest.raises(UsageError, match="is recomputed as a whole: leave --from and --to out"):
        ranges.parse_slice(SILVER, "2026-03-01", "2026-03-02", as_a_whole=True)


BRONZE = Table(name="bronze.events", comment="as it came", source=Kafka("events"))


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (
            BRONZE,
            "Kafka forgets, and rows that topic 'events' no longer holds would be gone for good, so reset_allowed is "
            "False; new data still flows: refresh the tables that read it, or declare reset_allowed=True",
        ),
        (
            replace(BRONZE, source={"eu": Delta("bronze.eu"), "us": Kafka(pattern="us-.*")}),
            "Kafka forgets, and rows that topics like 'us-.*' no longer holds would be gone for good, so reset_allowed "
            "is False; new data still flows: refresh the tables that read it, or declare reset_allowed=True",
        ),
        (
            replace(BRONZE, source=Files("files", "csv"), reset_allowed=False),
            "its file says reset_allowed=False; new data still flows: refresh the tables that read it, or take that "
            "out",
        ),
        (
            replace(SILVER, reset_allowed=False),
            "its file says reset_allowed=False; new data still flows: backfill a range of it, or take that out",
        ),
    ],
)
def test_what_is_protected_is_not_refreshed_and_is_told_why_and_what_is_possible_instead(table, why):
    with pytest.raises(UsageError) as error:
        ranges.parse_slice(table, None, None, as_a_whole=True)
    assert str(error.value) == f"{table.name} cannot be refreshed: {why}"
    assert ranges.downstream_slice(table, SILVER, Slice()) == why, "nor below another one: it is STALE then"


@pytest.mark.parametrize(
    "table", [replace(BRONZE, reset_allowed=True), replace(BRONZE, source=Files("files", "csv")), SILVER, GOLD]
)
def test_what_is_not_protected_may_be_refreshed(table):
    assert ranges.parse_slice(table, None, None, as_a_whole=True) == Slice()


def test_protection_is_no_obstacle_to_making_a_range_again():
    assert ranges.refusal(replace(SILVER, reset_allowed=False)) is None


def test_the_tables_that_are_shipped_can_be_backfilled_but_for_bronze_views_and_those_of_several_flows():
    tables = catalog.load().tables.values()
    assert {table.name for table in tables if ranges.refusal(table)} == {
        table.name for table in tables if table.layer == "bronze" or table.is_view or len(table.flows) > 1
    }
    assert all(isinstance(table.write, Append) for table in tables if table.time_column)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("0001-01-01", "0001-01-02"),
        ("0999-12-31T23:59:59.999999", "9999-12-31"),
        ("0001-01-01T00:00Z", "1000-01-01"),
    ],
)
def test_years_of_fewer_digits_and_the_ends_of_the_calendar_are_moments_like_all_others(begin: str, end: str):
    parsed_slice = ranges.parse_slice(SILVER, begin, end)
    texts = parsed_slice.texts
    assert {len(text) for text in texts} == {ranges.STORED_LENGTH}, "texts compare like the times"
    assert texts[0] < texts[1]
    assert ranges.from_stored_texts(*texts) == parsed_slice
    unpadded = [text.lstrip("0") for text in texts]
    assert ranges.from_stored_texts(*unpadded) == parsed_slice, "as an earlier release stored them"
    assert f"DATE '{begin[:10]}'" in parsed_slice.condition("day", is_date=True)
    buckets = ranges.parse_slice(GOLD, begin, end)
    assert buckets.begin <= parsed_slice.begin < parsed_slice.end <= buckets.end
    assert buckets.extended(10**9).begin >= ranges.FIRST
    assert buckets.extended(10**9).end <= ranges.LAST


def test_a_range_that_would_end_after_the_last_year_is_refused_with_the_last_moment():
    for end in ("9999-12-31T00:00:00.000001", "9999-12-31T23:59:59.999999Z"):
        with pytest.raises(UsageError, match="no range ends after 9999-12-31T00:00:00Z: name that"):
            ranges.parse_slice(GOLD, "2026-03-01", end)
    for moment in ("9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00", "10000-01-01", "0000-01-01"):
        with pytest.raises(UsageError, match="no moment: write one such as"):
            ranges.parse_slice(GOLD, moment, "2026-03-01")
