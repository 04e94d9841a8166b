"""Small batches take the fast path, with the same result as Spark's own writers."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial

import pytest
from delta.exceptions import ConcurrentAppendException, ConcurrentTransactionException
from deltalake import DeltaTable
from pyspark import TaskContext
from pyspark.sql import functions as F

from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.delta.delta_log import MERGED, DeltaLog
from include.engine.fast_path import aggregate, collect, path, replaced_files, transaction
from include.engine.fast_path.transaction import Target, Transaction
from include.engine.rows import prepare
from include.engine.rows.micro_batch import Refusal
from include.engine.sources import readers
from include.engine.sources.reader import PlannedRead
from include.engine.tables import create_table
from include.errors import FlowBroken, LedgerMismatch
from include.lake import locations
from include.ledger import row_outcomes, verify
from include.settings import settings
from include.spec import Append, Bucket, Delta, Expect, Flow, Table, Upsert, Watermark
from tests.support.commits import switch_fast_path
from tests.support.expected import changes as changes_of_keys
from tests.support.flows import only_in_full_runs, rows_of

SOURCE_SCHEMA = "device STRING, time TIMESTAMP, bpm INT, weight DECIMAL(12,3), place BIGINT, tags ARRAY<STRING>"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch) -> None:
    switch_fast_path(monkeypatch, True)


def readings(name: str, **overrides) -> Table:
    arguments = {
        "name": f"silver.{name}",
        "comment": "readings of a test",
        # Each commit becomes one batch.
        "source": Delta(f"bronze.{name}", max_files=1),
        "schema": SOURCE_SCHEMA,
        "write": Append(unique=("device", "time"), first_by=("place",)),
        "expect": (Expect("plausible", "bpm BETWEEN 20 AND 250"),),
    }
    return Flow(**{**arguments, **overrides})


def per_minute(name: str) -> Table:
    def transform(rows):
        return rows.groupBy("device", "minute").agg(F.count("*").alias("readings"), F.sum("weight").alias("weight"))

    return Flow(
        name=f"gold.{name}",
        comment="readings by minute",
        source=Delta(f"silver.{name}", max_files=1),
        schema="device STRING, minute TIMESTAMP, readings BIGINT, weight DECIMAL(22,3)",
        transform=transform,
        write=Upsert(keys=("device", "minute"), recompute=Bucket("minute", of="time", unit="minute")),
    )


@pytest.fixture
def arrive(append, name) -> Callable[..., None]:
    """Appends rows (device, seconds after noon, bpm) to bronze in one commit, in this order."""
    place_numbers = iter(range(1_000_000))

    def add(*rows: tuple) -> None:
        records = [
            {
                "device": device,
                "time": None if seconds is None else NOON + timedelta(seconds=seconds),
                "bpm": bpm,
                "weight": Decimal("70.125"),
                "place": next(place_numbers),
                "tags": ["x", None],
            }
            for device, seconds, bpm in rows
        ]
        append(f"bronze.{name}", records, SOURCE_SCHEMA)

    return add


def assert_metrics_are_true(table: str) -> None:
    """Compares the metrics of each commit of rows with the files that it added and removed."""
    rows_by_file: dict[str, int] = {}
    log = locations.table_path(table) / "_delta_log"
    for file in sorted(log.glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        added = [action["add"] for action in actions if "add" in action]
        removed = [action["remove"] for action in actions if "remove" in action]
        rows_by_file |= {add["path"]: json.loads(add["stats"])["numRecords"] for add in added}
        rows_added, rows_removed = (sum(rows_by_file[each["path"]] for each in files) for files in (added, removed))
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        metrics = {name: int(value) for name, value in info.get("operationMetrics", {}).items()}
        if info["operation"] == "WRITE":
            sizes = sum(add["size"] for add in added)
            assert metrics == {"numFiles": len(added), "numOutputRows": rows_added, "numOutputBytes": sizes}
        if info["operation"] == "MERGE":
            assert set(info["operationParameters"].values()) <= {"[]", "null"}, "no clause is made up"
            inserted, updated, deleted, copied = (
                metrics[f"numTargetRows{did}"] for did in ("Inserted", "Updated", "Deleted", "Copied")
            )
            assert (inserted + updated + copied, updated + deleted + copied) == (rows_added, rows_removed)
            assert metrics["numOutputRows"] == rows_added
            for did, files in (("Added", added), ("Removed", removed)):
                assert metrics[f"numTargetFiles{did}"] == len(files)
                assert metrics[f"numTargetBytes{did}"] == sum(each["size"] for each in files)


def fast_path_flags(table: str) -> list[bool]:
    """Whether each batch of a table took the fast path, oldest first."""
    metadata = [commit.metadata for commit in DeltaLog(locations.table_path(table)).commits()]
    return [entry["fast_path"] for entry in reversed(metadata) if "batch" in entry]


EDGE_CASES = [
    [("a", 1, 60), ("a", 1, 61), ("b", 1.5, 62), ("a", 2, 400), (None, 3, 63), ("c", None, 64)],
    [("a", 1, 99), ("a", 61, 65), ("b", 1.5, 66), ("ü", -1, 67), (None, 3, 68), ("c", None, 69)],
    [("d", 5, None), ("d", 6, 0)],
    [("a", 7200, 70), ("a", 30, 71), ("ü", -1, 72)],
    [("a", 59.999999, 73), ("a", 60, 74)],
]


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(Append(unique=("device", "time"), first_by=("place",)), marks=only_in_full_runs),
        pytest.param(
            Append(unique=("device",), first_by=("place",), watermark=Watermark("time", minutes=1)),
            marks=only_in_full_runs,
        ),
        pytest.param(
            Append(unique=("device",), first_by=("place",), watermark=Watermark("time", minutes=1, late="drop")),
            marks=only_in_full_runs,
        ),
        pytest.param(Append(), marks=only_in_full_runs),
    ],
    ids=["identity with a time", "within a watermark", "late rows dropped", "no identity"],
)
def test_both_paths_leave_the_same_rows_and_the_same_stamps(arrive, run_once, spark, name, append, monkeypatch, write):
    for rows in EDGE_CASES:
        arrive(*rows)
    contents, batch_metadata = [], []
    for silver in (readings(name, write=write), readings(f"{name}w", source=Delta(f"bronze.{name}", max_files=1))):
        silver = replace(silver, write=write)
        gold = per_minute(silver.name.removeprefix("silver."))
        with monkeypatch.context() as patched:
            if contents:
                patched.setattr(path, "of", lambda spark, table: None)
            run_once(silver, gold)
        assert set(fast_path_flags(silver.name)) | set(fast_path_flags(gold.name)) == {not contents}
        columns = ("device", "time", "bpm", "weight", "place", "tags")
        rows = [tuple(map(str, (row[column] for column in columns))) for row in rows_of(silver.name)]
        quarantine_rows = [
            (*map(str, (row[column] for column in columns)), *row["_rules"], row["_batch"])
            for row in rows_of(silver.quarantine)
        ]
        gold_rows = [tuple(map(str, row.values())) for row in rows_of(gold.name)]
        contents.append((Counter(rows), Counter(quarantine_rows), Counter(gold_rows)))
        metadata = [commit.metadata for commit in DeltaLog(locations.table_path(silver.name)).commits()]
        of_quarantine = [commit.metadata for commit in DeltaLog(locations.table_path(silver.quarantine)).commits()]
        batch_metadata.append(
            [(entry["rows"], entry["newest"], entry["source_to"]) for entry in metadata if "batch" in entry]
            + [(entry["batch"], entry["source_to"]) for entry in of_quarantine if "batch" in entry]
        )
        if not contents:
            for table in (silver.name, silver.quarantine, gold.name):
                assert_metrics_are_true(table)
    assert contents[0] == contents[1]
    assert contents[0][0].total() > 3
    assert batch_metadata[0] == batch_metadata[1]


def running_totals(name: str) -> Table:
    """Readings of each device, and their running total. A new device changes the rows of all later devices."""

    def transform(rows):
        devices = rows.groupBy("device").agg(F.count("*").alias("readings"), F.sum("weight").alias("weight"))
        return devices.selectExpr("*", "sum(readings) OVER (ORDER BY device NULLS FIRST) AS so_far")

    return Flow(
        name=f"gold.{name}",
        comment="readings so far",
        source=Delta(f"silver.{name}", max_files=1),
        schema="device STRING, readings BIGINT, weight DECIMAL(22,3), so_far BIGINT",
        transform=transform,
        write=Upsert(keys=("device",)),
    )


def test_an_aggregate_without_buckets_is_the_same_by_both_paths_and_rewrites_only_what_changed(
    arrive, run_once, name, monkeypatch
):
    silver = readings(name, write=Append(), expect=())
    spark_table = replace(running_totals(name), name=f"gold.{name}w")
    for rows in (EDGE_CASES[0], EDGE_CASES[1], EDGE_CASES[3]):
        arrive(*rows)
        run_once(silver, running_totals(name))
        with monkeypatch.context() as patched:
            patched.setattr(path, "of", lambda spark, table: None)
            run_once(spark_table)
        fast_path_rows, spark_rows = (
            Counter(tuple(map(str, row.values())) for row in rows_of(table.name))
            for table in (running_totals(name), spark_table)
        )
        assert fast_path_rows == spark_rows
    assert (set(fast_path_flags(f"gold.{name}")), set(fast_path_flags(spark_table.name))) == ({True}, {False})
    files_before = {file.path for file in DeltaLog(locations.table_path(f"gold.{name}")).state.live}
    # This device sorts last, so no other row changes.
    arrive(("ÿ", 9, 70))
    run_once(silver, running_totals(name))
    assert files_before < {file.path for file in DeltaLog(locations.table_path(f"gold.{name}")).state.live}
    assert_metrics_are_true(f"gold.{name}")
    assert verify.verify(running_totals(name)).batches == 4


CHANGES_SCHEMA = "id INT, place STRING, mood STRING, seq INT, is_delete BOOLEAN"
MERGE = Upsert(("id",), sequence_by="seq", deletes="is_delete")


def test_files_of_any_size_are_rewritten_part_by_part(append, run_once, name, monkeypatch):
    names = [column.split()[0] for column in CHANGES_SCHEMA.split(", ")]
    rows = [(key, f"place-{key}", None, 1, False) for key in range(1_000)]
    append(f"bronze.{name}", [dict(zip(names, row, strict=True)) for row in rows], CHANGES_SCHEMA)
    silver = Flow(
        name=f"silver.{name}",
        comment="merged changes",
        source=Delta(f"bronze.{name}", max_files=1),
        schema="id INT, place STRING, mood STRING, seq INT",
        write=MERGE,
    )
    run_once(silver)
    monkeypatch.setattr(replaced_files, "MOST_REPLACED_BYTES", 0)
    monkeypatch.setattr(replaced_files, "PART_ROWS", 100)
    changes = [(7, "moved", None, 2, False), (450, None, None, 2, True), (999, "late", None, 0, False)]
    append(f"bronze.{name}", [dict(zip(names, row, strict=True)) for row in changes], CHANGES_SCHEMA)
    repeated = [dict(zip(names, row, strict=True)) for row in changes]
    append(f"bronze.{name}", repeated, CHANGES_SCHEMA)
    run_once(silver)
    assert fast_path_flags(silver.name) == [True, True, True]
    expected = {row[0]: row[1] for row in rows if row[0] != 450} | {7: "moved"}
    assert {row["id"]: row["place"] for row in rows_of(silver.name)} == expected
    assert len(rows_of(silver.name)) == 999
    verify.verify(silver)
    # A repeated change rewrites nothing, and leaves no file behind.
    table = DeltaTable(str(locations.table_path(silver.name)))
    assert table.version() == 3 and len(table.file_uris()) == 2
    stored_files = list(locations.table_path(silver.name).glob("*.parquet"))
    assert len(stored_files) == len(table.file_uris()) + 1


@pytest.mark.parametrize(
    "write",
    [
        MERGE,
        pytest.param(replace(MERGE, partial=True), marks=only_in_full_runs),
        pytest.param(replace(MERGE, scd=2, truncates="id = 3 AND seq = 4"), marks=only_in_full_runs),
    ],
    ids=["latest", "partial", "history with truncates"],
)
def test_changes_are_merged_to_the_same_rows_by_both_paths(append, run_once, name, monkeypatch, write):
    random_ = random.Random(21)
    changes = [change for key in range(20) for change in changes_of_keys.random_changes(random_, key)]
    batches = changes_of_keys.in_batches(random_, [*changes, (None, "north", None, 1, False)], 4)
    for batch in batches:
        names = [column.split()[0] for column in CHANGES_SCHEMA.split(", ")]
        append(f"bronze.{name}", [dict(zip(names, change, strict=True)) for change in batch], CHANGES_SCHEMA)
    contents: list[list[Counter]] = []
    counts: list[list[dict | None]] = []
    for has_fast_path in (True, False):
        silver = Flow(
            name=f"silver.{name}{'w' if has_fast_path else ''}",
            comment="merged changes",
            source=Delta(f"bronze.{name}", max_files=1),
            schema="id INT, place STRING, mood STRING, seq INT",
            write=write,
        )
        with monkeypatch.context() as patched:
            if not has_fast_path:
                patched.setattr(path, "of", lambda spark, table: None)
            run_once(silver)
        flags = fast_path_flags(silver.name)
        assert any(flags) == has_fast_path
        verify.verify(silver)
        if all(flags):
            assert_metrics_are_true(silver.name)
        counts.append([batch.outcomes for batch in reversed(row_outcomes.batches(silver, 9))])
        names = [silver.name, silver.quarantine]
        # Of the latest rows, Spark does not look at the stored ones, and retains older deletes, too.
        names += [] if write is MERGE else [silver.retained]
        stored = [rows_of(stored_name) for stored_name in names]
        described = ("_flow", "_source")
        contents.append(
            [Counter(repr({key: row[key] for key in row if key not in described}) for row in rows) for rows in stored]
        )
    assert contents[0] == contents[1]
    assert all(contents[0])
    assert counts[0] == counts[1] == expected_outcomes(batches, write)
    assert_each_falsified_number_is_found(silver)


def expected_outcomes(batches: list[list[changes_of_keys.Change]], write: Upsert) -> list[dict[str, int]]:
    """By plain Python."""
    rows_of_key = changes_of_keys.partial_with_sequences if write.partial else changes_of_keys.latest
    if write.scd == 2:
        rows_of_key = partial(changes_of_keys.history, tracked=slice(1, 3))
    seen: list[changes_of_keys.Change] = []
    truncated: list[int] = []
    expected = []
    for batch in batches:
        kept = [change for change in batch if change[0] is not None]
        truncates = [change for change in kept if write.truncates and (change[0], change[3]) == (3, 4)]
        changes = [change for change in kept if change not in truncates]
        sequences = [change[3] for change in truncates]
        expected.append(changes_of_keys.outcomes(seen, changes, rows_of_key, (truncated, sequences)))
        seen, truncated = [*seen, *changes], [*truncated, *sequences]
    return expected


def assert_each_falsified_number_is_found(table: Table) -> None:
    version = DeltaLog(locations.table_path(table.name)).newest
    file = locations.table_path(table.name) / "_delta_log" / f"{version:020}.json"
    lines = file.read_text().splitlines()
    commit = next(line for line in lines if "commitInfo" in line)

    def falsify(section: str, name: str) -> None:
        info = json.loads(commit)
        metadata = json.loads(info["commitInfo"]["userMetadata"])
        numbers = info["commitInfo"]["operationMetrics"] if section == "delta" else metadata["rows"]["changes"]
        numbers[name] = type(numbers[name])(int(numbers[name]) + 1)
        info["commitInfo"]["userMetadata"] = json.dumps(metadata)
        file.write_text("\n".join(json.dumps(info) if line is commit else line for line in lines))

    names = ["keys", "stale", "truncates", "tombstones"]
    falsified = [*(("sluice", name) for name in names), ("delta", MERGED["inserted"]), ("delta", MERGED["deleted"])]
    for section, name in falsified:
        falsify(section, name)
        with pytest.raises(LedgerMismatch, match=table.name):
            verify.verify(table)
    file.write_text("\n".join(lines))
    verify.verify(table)


def test_an_aggregate_without_buckets_of_a_large_source_is_left_to_spark(arrive, run_once, name, monkeypatch):
    monkeypatch.setattr(aggregate, "MOST_SOURCE_ROWS", 2)
    arrive(("a", 1, 60), ("b", 2, 61))
    run_once(readings(name), running_totals(name))
    arrive(("a", 3, 62))
    run_once(readings(name), running_totals(name))
    assert fast_path_flags(f"gold.{name}") == [True, False]
    assert sorted((row["device"], row["so_far"]) for row in rows_of(f"gold.{name}")) == [("a", 2), ("b", 3)]


def test_a_bucket_is_whole_though_its_rows_lie_between_files_that_hold_none_of_it(arrive, run_once, name):
    for number in range(6):
        # Statistics have whole milliseconds, so files of the earlier bucket may seem to hold rows of the later bucket.
        arrive(("a", 60 + number, 60))
        arrive(("a", 59.9999 + number / 1e5, 61))
    run_once(readings(name), per_minute(name))
    assert set(fast_path_flags(f"gold.{name}")) == {True}
    assert sorted(row["readings"] for row in rows_of(f"gold.{name}")) == [6, 6]


def test_a_table_stays_plain_for_every_reader(arrive, run_once, spark, name):
    # Each run adds one file to each table, with rows two hours apart.
    for rows in ([("a", 1, 60), ("b", 90.0005, 61)], [("a", 7200, 62)]):
        arrive(*rows)
        run_once(readings(name), per_minute(name))
    for table, column in ((f"silver.{name}", "time"), (f"gold.{name}", "minute")):
        table_path = locations.table_path(table)
        assert (table_path / "_delta_log" / f"{DeltaTable(str(table_path)).version():020}.crc").exists()
        frame = spark.read.format("delta").load(str(table_path))
        arrow_rows = rows_of(table)
        assert frame.count() == len(arrow_rows)
        # Data skipping must not skip a file that holds a requested row.
        for row in arrow_rows:
            selection = frame.filter(F.col(column) == F.lit(row[column]))
            assert selection.count() >= 1
        later_rows = frame.filter(F.col(column) > F.lit(NOON + timedelta(hours=1)))
        assert later_rows.count() == 1
        assert 0 < len(later_rows.inputFiles()) < len(frame.inputFiles())


def test_a_table_that_gains_a_feature_is_written_by_spark_from_the_next_batch_on(arrive, run_once, spark, name):
    silver = readings(name)
    arrive(("a", 1, 60))
    run_once(silver)
    spark.sql(f"ALTER TABLE silver.{name} ADD CONSTRAINT sound CHECK (place >= 0)")
    arrive(("a", 1, 61), ("a", 2, 62), ("a", 3, 400))
    run_once(silver)
    assert fast_path_flags(silver.name) == [True, False]
    spark.sql(f"ALTER TABLE silver.{name} DROP CONSTRAINT sound")
    arrive(("a", 2, 63), ("a", 4, 64))
    run_once(silver)
    assert fast_path_flags(silver.name) == [True, False, True]
    assert sorted(row["bpm"] for row in rows_of(silver.name)) == [60, 62, 64]
    assert [row["bpm"] for row in rows_of(silver.quarantine)] == [400]


def test_a_flow_crosses_to_spark_and_back_with_the_size_of_its_batches(arrive, run_once, name, monkeypatch):
    monkeypatch.setattr(collect, "MOST_ROWS", 3)
    monkeypatch.setattr(aggregate, "MOST_SOURCE_ROWS", 3)
    silver, gold = readings(name), per_minute(name)
    for rows in ([("a", 1, 60)], [("a", 1, 61), *[("a", n, 62) for n in range(2, 8)]], [("a", 2, 63), ("a", 69, 64)]):
        arrive(*rows)
    run_once(silver, gold)
    assert fast_path_flags(silver.name) == [True, False, True]
    # Gold begins with a snapshot, which holds the whole first minute.
    assert fast_path_flags(gold.name) == [False, False, True]
    assert sorted(row["bpm"] for row in rows_of(silver.name)) == [60, *[62] * 6, 64]
    assert sorted(row["readings"] for row in rows_of(gold.name)) == [1, 7]
    assert verify.verify(silver).batches == 3


def test_a_flow_whose_batches_are_large_from_the_first_on_finds_out_how_long_its_rows_are(
    arrive, run_once, name, monkeypatch
):
    monkeypatch.setattr(collect, "MOST_BYTES", 10 * collect.BYTES_PER_ROW)
    # The source files must not reveal the row length either.
    monkeypatch.setattr(collect, "BYTES_PER_STORED_BYTE", 10_000)
    silver = readings(name)
    for batch in range(4):
        arrive(*[("a", 40 * batch + n, 60) for n in range(30)])
    run_once(silver)
    assert fast_path_flags(silver.name) == [False, False, True, True]
    assert len(rows_of(silver.name)) == 120
    assert verify.verify(silver).batches == 4


def test_a_large_batch_behind_small_ones_is_computed_by_generated_code(arrive, run_once, name, monkeypatch):
    monkeypatch.setattr(collect, "MOST_ROWS", 3)
    silver, is_generated, tune = readings(name), [], prepare.tune
    # A task also has the properties of its thread, which may be those of the batch before.
    codegen_mode = F.udf(lambda: TaskContext.get().getLocalProperty("spark.sql.codegen.factoryMode"))

    def record_codegen(session, expected_rows):
        tune(session, expected_rows)
        is_generated.append(session.range(1).select(codegen_mode()).first()[0] != "NO_CODEGEN")

    monkeypatch.setattr(prepare, "tune", record_codegen)
    for rows in ([("a", 1, 60)], [("a", n, 62) for n in range(2, 8)], [("a", 9, 64)]):
        arrive(*rows)
    run_once(silver)
    assert fast_path_flags(silver.name) == [True, False, True]
    assert is_generated == [False, True, False]


def test_an_optimize_and_a_restore_by_hand_between_two_batches_lose_and_double_nothing(arrive, run_once, spark, name):
    silver = readings(name)
    arrive(("a", 1, 60))
    arrive(("a", 2, 61))
    run_once(silver)
    spark.sql(f"OPTIMIZE silver.{name}")
    version = DeltaTable(str(locations.table_path(silver.name))).version()
    arrive(("a", 1, 62), ("a", 3, 63))
    run_once(silver)
    assert sorted(row["bpm"] for row in rows_of(silver.name)) == [60, 61, 63]
    spark.sql(f"RESTORE TABLE silver.{name} TO VERSION AS OF {version}")
    arrive(("a", 2, 64), ("a", 3, 65))
    with pytest.raises(FlowBroken, match="by a RESTORE"):
        run_once(silver)
    engine = database.connect(settings().control_url)
    commands.execute(engine, Command(Action.RESET_CHECKPOINT, (silver.flow,), "ada", "a test"))
    run_once(silver)
    assert sorted(row["bpm"] for row in rows_of(silver.name)) == [60, 61, 63]


def test_what_is_known_of_a_table_is_forgotten_when_somebody_else_commits_to_it(
    arrive, run_once, spark, name, append, monkeypatch
):
    silver = readings(name)
    arrive(("a", 1, 60))
    run_once(silver)
    arrive(("a", 2, 61))
    arrive(("a", 3, 62))
    original_commit = path.Appender._commit

    def interfere(self, transaction_, file, commit_metadata, reads):
        original_commit(self, transaction_, file, commit_metadata, reads)
        if commit_metadata.batch == 1:
            # Another writer commits the row of the next batch.
            row = {"device": "a", "time": NOON + timedelta(seconds=3), "bpm": 99, "weight": None, "place": 7}
            append(silver.name, [{**row, "tags": None}], SOURCE_SCHEMA)

    monkeypatch.setattr(path.Appender, "_commit", interfere)
    run_once(silver)
    assert sorted(row["bpm"] for row in rows_of(silver.name)) == [60, 61, 99]


def test_a_batch_without_new_commits_reads_nothing(name):
    offset = {"reservoirVersion": 3, "index": -1, "isStartingVersion": False}
    assert readers.of(per_minute(name)).planned(offset, offset) == PlannedRead(0)


def test_of_two_drivers_that_write_one_batch_the_second_is_refused(spark, name):
    table = readings(name)
    create_table.create(spark, table)
    first_target, second_target = Target(spark, table.name), Target(spark, table.name)
    first_transaction, second_transaction = first_target.begin(), second_target.begin()
    first_transaction.append([], "{}", ("flow/1", 0), 0, reads=False)
    with pytest.raises(ConcurrentTransactionException):
        second_transaction.append([], "{}", ("flow/1", 0), 0, reads=False)
    assert second_target.begin().last_batch("flow/1") == first_target.begin().last_batch("flow/1") == 0
    assert first_target.begin().last_batch("flow/2") == -1


def test_files_that_depend_on_rows_of_the_table_conflict_with_rows_that_came_since(append, spark, name):
    table = readings(name)
    create_table.create(spark, table)
    target = Target(spark, table.name)
    row = {"device": "a", "time": NOON, "bpm": 99, "weight": None, "place": 7, "tags": None}

    def begin() -> Transaction:
        begun = target.begin()
        append(table.name, [row], SOURCE_SCHEMA)
        return begun

    counts = dict.fromkeys((*MERGED.values(), "operationNumSourceRows", "numTargetRowsCopied", "numOutputRows"), 0)
    merge, reading, blind = begin(), begin(), begin()
    with pytest.raises(ConcurrentAppendException):
        merge.replace([], [], "{}", ("flow/1", 0), counts)
    with pytest.raises(ConcurrentAppendException):
        reading.append([], "{}", ("flow/1", 0), 0, reads=True)
    blind.append([], "{}", ("flow/1", 0), 0, reads=False)
    assert target.begin().last_batch("flow/1") == 0


def test_delta_s_internals_are_as_the_fast_path_expects_them(spark):
    assert transaction.unexpected(spark) is None


def test_with_another_delta_all_batches_are_written_by_spark(arrive, run_once, name, monkeypatch, caplog):
    monkeypatch.setitem(transaction.EXPECTED, "org.apache.spark.sql.delta.Snapshot", {"moved": ()})
    arrive(("a", 1, 60))
    run_once(readings(name))
    assert fast_path_flags(f"silver.{name}") == [False]
    assert "Snapshot.moved() is missing" in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
        "ALTER TABLE {t} ADD CONSTRAINT sound CHECK (place >= 0)",
        "CREATE OR REPLACE TABLE {t} (device STRING, day DATE) USING delta PARTITIONED BY (day)",
        "CREATE OR REPLACE TABLE {t} (device STRING NOT NULL) USING delta",
        "CREATE OR REPLACE TABLE {t} (n INT, m INT GENERATED ALWAYS AS (n + 1)) USING delta",
    ],
)
def test_a_table_the_fast_path_does_not_know_is_refused(spark, name, statement):
    create_table.create(spark, readings(name))
    spark.sql(statement.format(t=f"silver.{name}"))
    assert isinstance(Target(spark, f"silver.{name}").begin(), Refusal)
