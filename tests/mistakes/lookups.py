"""Wrong lookups: unknown tables and columns, keys that are not unique, and histories."""

from dataclasses import replace

from include.spec import Append, Lookup, Table, Upsert, Watermark
from tests.mistakes.case import BILLS, BY_MINUTE, LATEST, READINGS, case

KEYS = replace(
    READINGS, name="silver.keys", schema="key BINARY, offset BIGINT", write=Upsert(("key",), sequence_by="offset")
)
TIMED = "key BINARY, offset BIGINT, time TIMESTAMP"
HISTORY = replace(KEYS, write=replace(KEYS.write, scd=2))
OF_KEYS = Lookup("silver.keys", on="key", columns=("offset",), prefix="key_")


def looks_up(flow: Table = READINGS, /, **fields) -> Table:
    return replace(flow, lookups=(replace(OF_KEYS, **fields),))


CASES = (
    case(
        "lookup_of_an_unknown_table",
        (looks_up(table="silver.keis"), KEYS),
        "silver/readings.py: a lookup reads 'silver.keis', which no file declares: did you mean 'silver.keys'?",
    ),
    case(
        "lookup_of_an_unknown_column",
        (looks_up(columns=("ofset",)), KEYS),
        "silver/readings.py: the lookup of silver.keys names 'ofset', no column of it: did you mean 'offset'?",
    ),
    case(
        "lookup_on_a_part_of_the_key",
        (looks_up(), replace(KEYS, write=Upsert(("key", "offset")))),
        "silver/readings.py: the lookup of silver.keys is on key, of which it may hold several rows: look for key, "
        "offset",
    ),
    case(
        "lookup_of_a_table_without_keys",
        (looks_up(), replace(KEYS, write=Append())),
        "silver/readings.py: the lookup of silver.keys is on key, of which it may hold several rows: read an Upsert, "
        "or an Append with unique",
    ),
    case(
        "lookup_of_a_table_that_may_store_a_key_twice",
        (looks_up(), replace(KEYS, schema=TIMED, write=Append(unique=("key",), watermark=Watermark("time", 30)))),
        "silver/readings.py: the lookup of silver.keys finds one row of a key, and its Append with a watermark stores "
        "a key again after 30 minutes: take its watermark out, or write it as an Upsert",
    ),
    case(
        "lookup_of_a_history_without_a_moment",
        (looks_up(), HISTORY),
        "silver/readings.py: silver.keys is a history, with several rows of a key: write current=True, or name the "
        "column of the source that selects one in at",
    ),
    case(
        "lookup_of_a_moment_without_history",
        (looks_up(at="offset"), KEYS),
        "silver/readings.py: at or current selects a row of a history, and silver.keys is none: take it out, or write "
        "scd=2",
    ),
    case(
        "lookup_of_a_moment_and_the_current_row",
        (looks_up(at="offset", current=True), HISTORY),
        "silver/readings.py: the lookup of silver.keys has at and current, and both select a row of a history: keep "
        "one",
    ),
    case(
        "lookup_without_keys",
        (looks_up(on=()), KEYS),
        "silver/readings.py: the lookup of silver.keys has no keys: name them in on",
    ),
    case(
        "lookup_without_columns",
        (looks_up(columns=()), KEYS),
        "silver/readings.py: the lookup of silver.keys adds no columns: name some",
    ),
    case(
        "lookups_that_add_a_column_twice",
        (replace(READINGS, lookups=(OF_KEYS, OF_KEYS)), KEYS),
        "silver/readings.py: its lookups add 'key_offset' twice: give one of them a prefix",
    ),
    case(
        "lookup_that_uses_a_version_for_too_long",
        (looks_up(refresh_seconds=10**6), KEYS),
        "silver/readings.py: refresh_seconds of silver.keys is 1e+06, and VACUUM may delete a version after 608400: "
        "make it shorter",
    ),
    case(
        "lookup_of_a_bronze_table",
        (looks_up(replace(BILLS, name="bronze.paid")), KEYS),
        "bronze/paid.py: lookups add columns, and bronze keeps what arrived: put them on the silver table",
    ),
    case(
        "lookup_of_an_aggregate",
        (looks_up(BY_MINUTE), KEYS),
        "gold/by_minute.py: lookups stand on a recomputed aggregate: put them on the table it reads",
    ),
    case(
        "lookup_of_a_view",
        (looks_up(LATEST), KEYS),
        "gold/latest.py: lookups are of no use to a view, which reads any number of tables: name them in source and "
        "join them",
    ),
)
