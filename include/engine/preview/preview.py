"""What today's code makes of rows of a table's source, and the rules they break: as its flow would, without a trace.

Nothing is written, so no lease is taken: neither a flow nor the control database knows of it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from include.catalog import Catalog
from include.engine import failure
from include.engine.batch import data_skipping, prepare, read, table_rows, tuning
from include.engine.batch import watermark as engine_watermark
from include.engine.batch.transform import SOURCE
from include.engine.files import batch_of_files, file_headers, schema_evolution
from include.engine.jobs import refresh
from include.engine.preview import outcome, sample, sample_file
from include.engine.preview.outcome import Outcome, kept
from include.engine.preview.sample import Sample
from include.errors import UsageError
from include.readers.landing_folder import Landed
from include.rules import Unique
from include.settings import settings
from include.spec import Append, Delta, Files, Table, Upsert
from include.validation.declaration import suggest


@dataclass(frozen=True)
class Asked:
    """rows: how many to read of a source, and to show. file: whose rows stand for those of a source; flow: of which."""

    spark: SparkSession
    tables: Catalog
    rows: int
    file: Path | None = None
    flow: str | None = None


@dataclass(frozen=True)
class Preview:
    """Of one flow, or of a view. source: which rows were read, in words; read: how many.

    files: those that would go to the quarantine, and why. notes: what the flow would look at and this has not.
    """

    flow: str
    source: str
    read: int
    outcome: Outcome
    files: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def previews(asked: Asked, name: str) -> list[Preview]:
    """Of each flow of a table, or of the one that is asked for. Raises UsageError, Unreachable, and FlowFailed."""
    table = asked.tables.steps.get(name) or asked.tables.table(name)
    names = [reader.flow for reader in table.readers]
    if asked.flow and asked.flow not in names:
        raise UsageError(f"--flow is '{asked.flow}', which is no flow of {name}: {suggest(asked.flow, names)}")
    if asked.file and not asked.flow and len(names) > 1:
        raise UsageError(f"{name} has several sources: say for which of them the file stands, --flow {names[0]}")
    readers = [table] if table.is_view else [one for one in table.readers if asked.flow in (None, one.flow)]
    try:
        return [_of(asked, reader) for reader in readers]
    except Exception as error:
        raise failure.of_exception(name, error) from error


def _of(asked: Asked, table: Table) -> Preview:
    if table.is_view:
        return _of_view(asked, table)
    if isinstance(table.source, Files):
        return _of_files(asked, table, table.source)
    if isinstance(table.write, Upsert):
        return _of_upsert(asked, table, table.write)
    return _of_appends(asked, table)


def _of_appends(asked: Asked, table: Table) -> Preview:
    found = _sample(asked, table)
    with _configured(asked.spark, tuning.FOR_SMALL_BATCHES), kept(found.rows) as rows:
        newest = None
        if table.watermark and settings().is_stored(table.name):
            newest = engine_watermark.newest(asked.spark, table)
        made = table_rows.apply_transform(table_rows.apply_steps(rows, table), table)
        ends = outcome.of(made, table, engine_watermark.rules_of(table, newest), asked.rows)
        return Preview(table.flow, found.what, rows.count(), ends, notes=(*_repeats(table), *_lateness(table, newest)))


def _of_upsert(asked: Asked, table: Table, write: Upsert) -> Preview:
    source, by = table.source, write.recompute
    assert isinstance(source, Delta)
    if asked.file:
        found = _sample(asked, table)
        made = table_rows.aggregated(found.rows, table, write)
        note = f"these rows are made of the file alone, and not of what {source.table} holds"
        return Preview(table.flow, found.what, found.rows.count(), _upserted(asked, made, table), notes=(note,))
    version = sample.log_of(table, source).newest
    if by is None:
        found = _whole(asked, table, source)
        made = table_rows.recomputed(asked.spark, table, write, version)
        return Preview(table.flow, found.what, found.rows.count(), _upserted(asked, made, table))
    found = _sample(asked, table)
    with kept(found.rows) as rows:
        buckets = table_rows.touched(prepare.starts(rows, table, by))
        made = table_rows.recomputed(
            asked.spark, table, write, version, data_skipping.condition(by.of, buckets, by.unit)
        )
        note = f"they touch {len(buckets):,} buckets of {by.name}, made of all that {source.table} holds for these"
        return Preview(table.flow, found.what, rows.count(), _upserted(asked, made, table), notes=(note,))


def _of_view(asked: Asked, view: Table) -> Preview:
    found = {}
    for reader in view.readers:
        assert isinstance(reader.source, Delta)
        stands_for_it = asked.file and asked.flow in (None, reader.flow)
        rows = _sample(asked, reader) if stands_for_it else _whole(asked, reader, reader.source)
        found[reader.branch or SOURCE] = rows
    made = refresh.computed({name: one.rows for name, one in found.items()}, view)
    read_ = sum(one.rows.count() for one in found.values())
    what = " and ".join(one.what for one in found.values())
    return Preview(view.name, what, read_, outcome.of(made, view, view.expect, asked.rows))


def _of_files(asked: Asked, table: Table, source: Files) -> Preview:
    if asked.file:
        path = asked.file.absolute()
        # As if it lay in the folder, whatever its name.
        table = replace(table, source=replace(source, path=str(path.parent), pattern="*"))
        chosen, what = [Landed(str(path), 0, 0)], f"the file {asked.file}"
    else:
        read.require_connector(asked.spark, settings().folder(source.path))
        chosen = sample.landed(table)
        what = f"the newest {len(chosen):,} files of {settings().folder(source.path)}"
    with _configured(asked.spark, batch_of_files.PARQUET):
        heads = file_headers.heads(table, [file.path for file in chosen])
        rows, broken = _readable(asked.spark, table, [head for head in heads if not head.problem])
        broken |= {head.path: head.problem for head in heads if head.problem}
        with kept(rows):
            ends = outcome.of(rows, table, (), asked.rows)
        return Preview(table.flow, what, ends.made, ends, broken, _new_columns(asked.spark, table, rows))


def _sample(asked: Asked, reader: Table) -> Sample:
    """Some rows of its source, or those of the file."""
    if not asked.file:
        return sample.newest(asked.spark, reader, asked.rows)
    source = reader.source
    assert not isinstance(source, Mapping), "a reader has one source"
    # What is recomputed is computed from rows.
    is_feed = isinstance(source, Delta) and source.changes and isinstance(reader.write, Append)
    schema = read.columns(asked.spark, source, asked.tables, is_feed)
    is_of_files = isinstance(source, Delta) and isinstance(asked.tables.tables[source.table].source, Files)
    return sample_file.read(asked.spark, asked.file, schema, may_have_more=is_of_files)


def _whole(asked: Asked, reader: Table, source: Delta) -> Sample:
    version = sample.log_of(reader, source).newest
    rows = read.newest(asked.spark, source.table)
    assert rows is not None
    return Sample(rows, f"all rows of {source.table}, version {version}")


def _upserted(asked: Asked, made: DataFrame, table: Table) -> Outcome:
    """No rule stands on an aggregate."""
    return outcome.of(made, table, (), asked.rows)


def _readable(spark: SparkSession, table: Table, heads: list[file_headers.Head]) -> tuple[DataFrame, dict[str, str]]:
    """The records of the files that can be read, and why others cannot."""
    try:
        rows = batch_of_files.read(spark, table, heads, schema_evolution.foresee)
        rows.write.format("noop").mode("overwrite").save()
        return rows, {}
    except (PySparkException, Py4JJavaError):
        blamed = {
            one.path: one.reason for one in batch_of_files.blamed(spark, table, heads, {}, schema_evolution.foresee)
        }
        if not blamed:
            raise
        return batch_of_files.read(
            spark, table, [one for one in heads if one.path not in blamed], schema_evolution.foresee
        ), blamed


@contextmanager
def _configured(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key) for key in conf}
    try:
        for key, value in conf.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, was in before.items():
            spark.conf.set(key, was)


def _repeats(table: Table) -> Iterator[str]:
    is_unique = isinstance(table.write, Append) and bool(table.write.unique)
    if is_unique or any(isinstance(rule, Unique) for rule in table.expect):
        yield f"rows that repeat each other are found among these alone: what {table.name} holds is not looked at"


def _lateness(table: Table, newest: int | None) -> Iterator[str]:
    if table.watermark and newest is None:
        yield f"no row is late: {table.name} holds none yet"
    elif table.watermark and newest is not None:
        moment = datetime.fromtimestamp(newest / 1_000_000, UTC).isoformat(sep=" ", timespec="seconds")
        by = f"more than {table.watermark.minutes:g} minutes before {moment}"
        yield f"late is what is {by}, the newest {table.watermark.of} that {table.name} holds now"


def _new_columns(spark: SparkSession, table: Table, rows: DataFrame) -> tuple[str, ...]:
    known = schema_evolution.schema_of(spark, table).fieldNames()
    new = [name for name in rows.columns if name not in known]
    return (f"the flow would add the columns {', '.join(new)}",) if new else ()
