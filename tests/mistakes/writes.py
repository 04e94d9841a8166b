"""Wrong write modes: appends, upserts, late rows, and readers of changing rows."""

from dataclasses import replace

from include.rules import unique
from include.spec import Append, Delta, Kafka, Table, Upsert, Watermark
from tests.mistakes.case import BY_MINUTE, EVENTS, MINUTE, READINGS, case

CHANGES = replace(
    READINGS,
    name="silver.places",
    schema="key STRING, place STRING, at BIGINT",
    write=Upsert(keys=("key",), sequence_by="at", deletes="place IS NULL"),
)


def changes(**options) -> Table:
    return replace(CHANGES, write=replace(CHANGES.write, **options))


CASES = (
    case(
        "reach_without_bucket",
        replace(BY_MINUTE, write=Upsert(keys=("key",), reach_minutes=5)),
        "gold/by_minute.py: reach_minutes is set without recompute: name the bucket whose rows look into others",
    ),
    case(
        "reach_of_many_buckets",
        replace(BY_MINUTE, write=replace(BY_MINUTE.write, reach_minutes=10_000)),
        "gold/by_minute.py: reach_minutes is 10000, more than 1,000 buckets of a minute: choose a larger unit",
    ),
    case(
        "change_with_a_reserved_column",
        replace(CHANGES, schema=f"{CHANGES.schema}, _deleted BOOLEAN"),
        "silver/places.py: column '_deleted' is one that Sluice adds, to count and quarantine rows: call it something "
        "else",
    ),
    case(
        "truncates_without_sequence",
        changes(sequence_by=None, deletes=None, truncates="place = 't'"),
        "silver/places.py: truncates is set without sequence_by: name the column that orders the changes of a key",
    ),
    case(
        "deletes_without_sequence",
        changes(sequence_by=None),
        "silver/places.py: deletes is set without sequence_by: name the column that orders the changes of a key",
    ),
    case(
        "changes_with_bucket",
        changes(recompute=MINUTE),
        "silver/places.py: recompute and sequence_by both say what its rows are, an aggregate or changes: keep one",
    ),
    case(
        "sequence_is_no_column",
        changes(sequence_by="att"),
        "silver/places.py: sequence_by is 'att', no column of its schema: did you mean 'at'?",
    ),
    case(
        "sequence_is_a_key",
        changes(sequence_by="key"),
        "silver/places.py: sequence_by is 'key', one of its keys, so each key has one change: name another column",
    ),
    case(
        "changes_with_a_map",
        replace(CHANGES, schema=f"{CHANGES.schema}, tags MAP<STRING, INT>"),
        "silver/places.py: column 'tags' is MAP, which Spark cannot compare with a stored one: store it as text",
    ),
    case(
        "third_kind_of_history",
        changes(scd=3),
        "silver/places.py: scd is 3: write 1 for the latest row of a key, 2 for its history",
    ),
    case(
        "history_with_a_watermark",
        changes(scd=2, watermark=Watermark("at", 30)),
        "silver/places.py: a history is computed from all changes of its keys, so none is forgotten: take watermark or "
        "scd out",
    ),
    case(
        "watermark_without_sequence",
        changes(sequence_by=None, deletes=None, watermark=Watermark("at", 30)),
        "silver/places.py: watermark is set without sequence_by: name the column that orders the changes of a key",
    ),
    case(
        "history_of_partial_changes",
        changes(scd=2, partial=True),
        "silver/places.py: partial changes have no history, because a row of it needs all columns: take partial or "
        "scd out",
    ),
    case(
        "tracked_without_history",
        changes(tracked=("place",)),
        "silver/places.py: tracked begins rows of a history, and scd is 1: write scd=2, or take it out",
    ),
    case(
        "tracked_is_no_column",
        changes(scd=2, tracked=("plaice",)),
        "silver/places.py: tracked names 'plaice', no column of its schema: did you mean 'place'?",
    ),
    case(
        "unique_changes",
        replace(CHANGES, expect=(unique("place"),)),
        "silver/places.py: rule 'place unique' is unique, and its keys are so anyway: take it out",
    ),
    case(
        "aggregate_of_kafka",
        replace(BY_MINUTE, source=Kafka("events")),
        "gold/by_minute.py: an upserted table reads a Delta table, and its source is none: read one",
    ),
    case(
        "appends_of_an_upserted_table",
        (
            replace(READINGS, name="gold.by_hour", source=Delta("silver.by_minute"), schema="key BINARY"),
            replace(BY_MINUTE, name="silver.by_minute"),
        ),
        "gold/by_hour.py: source 'silver.by_minute' is upserted, and a stream of appends would stop at the first "
        "changed row: read its changes, Delta('silver.by_minute', changes=True)",
    ),
    case(
        "bad_bucket_unit",
        replace(BY_MINUTE, write=Upsert(keys=("key", "minute"), recompute=replace(MINUTE, unit="minutes"))),
        "gold/by_minute.py: bucket unit is 'minutes': did you mean 'minute'?",
    ),
    case(
        "bucket_is_no_key",
        replace(BY_MINUTE, write=Upsert(keys=("key",), recompute=MINUTE)),
        "gold/by_minute.py: bucket 'minute' is not one of its keys: add it to ('key',)",
    ),
    case(
        "bucket_of_unknown_column",
        replace(BY_MINUTE, write=Upsert(keys=("key", "minute"), recompute=replace(MINUTE, of="timestmap"))),
        "gold/by_minute.py: bucket of 'timestmap', which its source has not: did you mean 'timestamp'?",
    ),
    case(
        "reader_of_a_wrong_aggregate_is_not_checked",
        (
            replace(BY_MINUTE, write=Upsert(keys=("key", "minute"), recompute=replace(MINUTE, of="timestmap"))),
            replace(BY_MINUTE, name="gold.by_key", source=Delta("gold.by_minute"), write=Append()),
        ),
        "gold/by_minute.py: bucket of 'timestmap', which its source has not: did you mean 'timestamp'?",
    ),
    case(
        "first_by_is_no_column",
        replace(READINGS, write=Append(unique=("key",), first_by=("arrival",))),
        "silver/readings.py: key 'arrival' is not a column of its schema: there are key, offset, timestamp",
    ),
    case(
        "key_is_a_map",
        replace(READINGS, schema="tags MAP<STRING, INT>, offset BIGINT", write=Append(unique=("tags",))),
        "silver/readings.py: key 'tags' is MAP, which Spark cannot compare: name another column",
    ),
    case(
        "key_is_no_column",
        replace(BY_MINUTE, write=Upsert(keys=("kye", "minute"), recompute=MINUTE)),
        "gold/by_minute.py: key 'kye' is not a column of its schema: did you mean 'key'?",
    ),
    case(
        "late_rows_fail",
        replace(READINGS, write=Append(unique=("key",), watermark=Watermark("timestamp", minutes=30, late="fail"))),
        "silver/readings.py: late is 'fail': there are quarantine, drop",
    ),
    case(
        "unique_is_no_column",
        replace(READINGS, write=Append(unique=("ofset",))),
        "silver/readings.py: key 'ofset' is not a column of its schema: did you mean 'offset'?",
    ),
    case(
        "unique_on_bronze",
        replace(EVENTS, write=Append(unique=("key",))),
        "bronze/events.py: unique would drop messages, and bronze keeps each as it arrived: put it on the silver table",
    ),
    case(
        "upsert_of_branches",
        (
            replace(BY_MINUTE, source={"eu": Delta("bronze.events"), "us": Delta("bronze.more")}),
            replace(EVENTS, name="bronze.more"),
        ),
        "gold/by_minute.py: Upsert has several sources, and the rows of one would overwrite those of another: "
        "append the branches to a table of their own, and upsert from that",
    ),
    case(
        "upsert_without_keys",
        replace(BY_MINUTE, write=Upsert(keys=(), recompute=MINUTE)),
        "gold/by_minute.py: Upsert has no keys: name the columns that identify a row",
    ),
    case(
        "watermark_of_unknown_column",
        replace(READINGS, write=Append(unique=("key",), watermark=Watermark("timestmap", minutes=30))),
        "silver/readings.py: watermark of 'timestmap', no column of its schema: did you mean 'timestamp'?",
    ),
    case(
        "watermark_without_unique",
        replace(READINGS, write=Append(watermark=Watermark("timestamp", minutes=30))),
        "silver/readings.py: watermark without unique: name the columns by which a repeated row is known",
    ),
)
