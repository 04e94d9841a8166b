"""Previews what today's code computes from rows of a table's source, and which rules they break, as its flow would.

It writes nothing, so it takes no lease, and flows and the control database do not notice it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from include import personal
from include.catalog import Catalog
from include.checkpoints.landing_folder import FolderFile
from include.control import personal_data
from include.engine import failure
from include.engine.batch import batch_of_files, bisection, failed_rows
from include.engine.commit import read_newest, read_table
from include.engine.files import file_headers, schema_evolution
from include.engine.files.formats.format import FileHeader
from include.engine.jobs import refresh
from include.engine.preview import outcome, sample
from include.engine.preview.outcome import Outcome, persisted
from include.engine.preview.sample import Sample
from include.engine.rows import deduplicate, prepare, storable, transform
from include.engine.rows import watermark as engine_watermark
from include.engine.rows.transform import SOURCE
from include.engine.rows.watermark import EventTimes
from include.engine.session import require_connector
from include.engine.sources import readers
from include.errors import UsageError
from include.kafka import schema_registry
from include.kafka.schema_registry import RegistryUnreachable
from include.lake import locations
from include.project.declaration import suggest
from include.rules import FAILED, Expect, Rule, Unique
from include.settings import settings
from include.spec import Delta, Files, Flow, Table, Upsert

ALL_FAIL = "every row that was tried fails: a flow whose definition has made no rows yet would be BROKEN"
TOO_MANY = "too many rows fail: the flow would be BROKEN, and no other row was looked at"
FAILING = Expect(FAILED, "true")


@dataclass(frozen=True)
class Evaluated:
    """An outcome. failed: by place, why no row could be made of a row of the source. notes: what that means."""

    outcome: Outcome
    failed: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def evaluated(
    source: DataFrame, make: Callable[[DataFrame], DataFrame], table: Table, rules: tuple[Rule, ...], limit: int
) -> Evaluated:
    """Returns the outcome of these source rows. make: makes rows of the table. rules, limit: as for `outcome.of`."""
    return evaluated_by_source({"": source}, lambda sources: make(sources[""]), table, rules, limit)


def evaluated_by_source(
    sources: Mapping[str, DataFrame],
    make: Callable[[Mapping[str, DataFrame]], DataFrame],
    table: Table,
    rules: tuple[Rule, ...],
    limit: int,
) -> Evaluated:
    """Returns the outcome of the rows of several sources. make: makes rows of the table, of the sources by name."""

    def outcome_of(rows: Mapping[str, DataFrame]) -> Outcome:
        return outcome.of(make(rows), table, rules, limit)

    try:
        return Evaluated(outcome_of(sources))
    except (PySparkException, Py4JError) as error:
        if not failed_rows.is_suspected(error, table):
            raise
        return _without_failing(dict(sources), outcome_of, error, table)


def _without_failing(
    sources: dict[str, DataFrame],
    outcome_of: Callable[[Mapping[str, DataFrame]], Outcome],
    error: Exception,
    table: Table,
) -> Evaluated:
    """error: of all together."""
    failed, notes, still = dict[str, str](), list[str](), error
    with ExitStack() as held:
        for name in list(sources):
            rows = held.enter_context(bisection.persisted(sources[name]))

            def error_of(begin: int, end: int, name: str = name, rows: bisection.Rows = rows) -> Exception | None:
                return bisection.error_of(lambda: outcome_of({**sources, name: rows.part(begin, end)}))

            search = bisection.search(rows.count, error_of, still) if rows.count else bisection.Search()
            if search.is_broken and name != list(sources)[-1]:
                # The rows of another source may be to blame.
                continue
            failed |= {
                rows.place(row.position, not table.has_personal_data): personal.sentence(table, row.reason)
                for row in search.found
            }
            notes += [ALL_FAIL] if search.is_broken else [TOO_MANY] if search.is_over else []
            sources[name] = rows.without([row.position for row in search.found])
            if search.is_over:
                sources[name] = sources[name].limit(0)
        if last := bisection.error_of(lambda: outcome_of(sources)):
            notes.append(f"the rows fail together, and none of them alone: {failure.reason(last, table)}")
            sources = {name: rows.limit(0) for name, rows in sources.items()}
        result = outcome_of(sources)
    if failed:
        ends = {**result.ends, "quarantine": result.ends.get("quarantine", 0) + len(failed)}
        result = replace(result, ends=ends, broke=[(FAILING, len(failed)), *result.broke])
    return Evaluated(result, failed, tuple(notes))


@dataclass(frozen=True)
class PreviewRequest:
    """A request. rows: how many to read of a source, and to show. file: its rows replace those of the source. flow: the
    only flow to preview. shows_personal: whether the values of personal columns are shown.
    """

    spark: SparkSession
    tables: Catalog
    rows: int
    file: Path | None = None
    flow: str | None = None
    shows_personal: bool = False


@dataclass(frozen=True)
class Preview:
    """The preview of one flow or view. source: a phrase that names the rows read. read: their number.

    files: those that would be quarantined, and why. failed: rows of the source, by place, of which no row can be made,
    and why. notes: what the flow would take into account and this does not.
    """

    flow: str
    source: str
    read: int
    outcome: Outcome
    files: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)


def previews(request: PreviewRequest, name: str) -> list[Preview]:
    """Returns the previews of all flows of a table, or of the requested one.

    Raises UsageError, Unreachable and FlowFailed.
    """
    table = request.tables.steps.get(name) or request.tables.table(name)
    if request.shows_personal:
        table = personal_data.without_personal(table)
    names = [reader.flow for reader in table.readers]
    if request.flow and request.flow not in names:
        raise UsageError(f"--flow is '{request.flow}', which is no flow of {name}: {suggest(request.flow, names)}")
    if request.file and not request.flow and len(names) > 1:
        raise UsageError(f"{name} has several sources: say for which of them the file stands, --flow {names[0]}")
    try:
        if table.is_view:
            return [_preview_view(request, table)]
        return [_preview(request, flow) for flow in table.readers if request.flow in (None, flow.flow)]
    except Exception as error:
        raise failure.of_exception(name, error, table) from error


def _preview(request: PreviewRequest, table: Flow) -> Preview:
    if table.reads_files:
        return _preview_files(request, table, table.source_as(Files))
    if table.is_recomputed:
        return _preview_upsert(request, table, table.write_as(Upsert))
    return _preview_appends(request, table)


def _preview_appends(request: PreviewRequest, table: Flow) -> Preview:
    inputs = _sample(request, table)
    with _with_settings(request.spark, prepare.FOR_SMALL_BATCHES), persisted(inputs.rows) as rows:
        times = EventTimes(None, None)
        if table.watermark:
            latest = round(time.time() * 1_000_000) + engine_watermark.micros(table.watermark.ahead_minutes)
            is_stored = locations.is_stored(table.name)
            times = EventTimes(engine_watermark.newest(request.spark, table, latest) if is_stored else None, latest)
        _, notes = _computed(rows, table)
        result = evaluated(
            rows,
            lambda some: _computed(some, table)[0],
            table,
            (*engine_watermark.rules_of(table, times), *prepare.rules_of_source(table), *_constraints(table)),
            request.rows,
        )
        notes += (*result.notes, *_repeats(table), *_changes(table), *_lateness(table, times.newest))
        return Preview(table.flow, inputs.what, rows.count(), result.outcome, failed=result.failed, notes=notes)


def _constraints(table: Table) -> tuple[Rule, ...]:
    return storable.constraints_of(table) if locations.is_stored(table.name) else ()


def _computed(rows: DataFrame, table: Flow) -> tuple[DataFrame, tuple[str, ...]]:
    """Returns rows of the table, and what is not checked because its schema registry does not answer."""
    source_rows = transform.apply_steps(rows, table)
    try:
        return transform.apply_transform(source_rows, table), ()
    except (RegistryUnreachable, UsageError) as error:
        with schema_registry.offline():
            return transform.apply_transform(source_rows, table), (
                f"values of schemas that no flow has read are shown as errors, and the flow would wait: {error}",
            )


def _preview_upsert(request: PreviewRequest, table: Flow, write: Upsert) -> Preview:
    source, bucket = table.source_as(Delta), write.recompute
    if request.file:
        inputs = _sample(request, table)
        note = f"these rows are made of the file alone, and not of what {source.table} holds"
        return _preview_aggregate(request, table, inputs, inputs.rows, transform.Buckets(), note)
    version = sample.log_of(table, source).newest
    if bucket is None:
        inputs = _whole_source(request, table, source)
        return _preview_aggregate(request, table, inputs, inputs.rows, transform.Buckets())
    inputs = _sample(request, table)
    with persisted(inputs.rows) as rows:
        counts = transform.count_by_bucket(prepare.starts(rows, table, bucket))
        starts = deduplicate.within_reach(counts, bucket.unit, write.reach_seconds)
        buckets = transform.Buckets.at(starts, bucket, write)
        source_rows = transform.of_buckets(read_table(request.spark, source.table, version), table, buckets)
        note = f"they touch {len(counts):,} buckets of {bucket.name}, made of all that {source.table} holds for these"
        return _preview_aggregate(request, table, replace(inputs, rows=rows), source_rows, buckets, note)


def _preview_aggregate(
    request: PreviewRequest,
    table: Flow,
    inputs: Sample,
    source_rows: DataFrame,
    buckets: transform.Buckets,
    *notes: str,
) -> Preview:
    """inputs: the rows that were read. source_rows: what is aggregated. Aggregates have no rules."""
    write = table.write_as(Upsert)
    result = evaluated(
        source_rows, lambda rows: transform.aggregated(rows, table, write, buckets), table, (), request.rows
    )
    read_rows, notes = inputs.rows.count(), (*result.notes, *notes)
    return Preview(table.flow, inputs.what, read_rows, result.outcome, failed=result.failed, notes=notes)


def _preview_view(request: PreviewRequest, view: Table) -> Preview:
    samples = {}
    for reader in view.readers:
        is_replaced_by_file = request.file and request.flow in (None, reader.flow)
        reader_sample = (
            _sample(request, reader) if is_replaced_by_file else _whole_source(request, reader, reader.source_as(Delta))
        )
        samples[reader.branch or SOURCE] = reader_sample
    frames = {name: inputs.rows for name, inputs in samples.items()}
    # A row that no table may store fails the refresh.
    of_columns = tuple(replace(rule, otherwise="fail") for rule in storable.rules_by_column(view))
    rules = (*view.expect, *of_columns)
    result = evaluated_by_source(frames, lambda some: refresh.computed(some, view), view, rules, request.rows)
    rows_read = sum(inputs.rows.count() for inputs in samples.values())
    what = " and ".join(inputs.what for inputs in samples.values())
    return Preview(view.name, what, rows_read, result.outcome, failed=result.failed, notes=result.notes)


def _preview_files(request: PreviewRequest, table: Flow, source: Files) -> Preview:
    if request.file:
        path = request.file.absolute()
        # Treats the file as one of the folder, whatever its name.
        table = replace(table, source=replace(source, path=str(path.parent), pattern="*"))
        files, what = [FolderFile(str(path), 0, 0)], f"the file {request.file}"
    else:
        require_connector(request.spark, settings().folder(source.path))
        files = sample.landed(table)
        what = f"the newest {len(files):,} files of {settings().folder(source.path)}"
    with _with_settings(request.spark, batch_of_files.PARQUET):
        heads = file_headers.read_headers(table, [file.path for file in files])
        rows, bad_files = _read_files(request.spark, table, [head for head in heads if not head.problem])
        bad_files |= {head.path: head.problem for head in heads if head.problem}
        with persisted(rows):
            result = outcome.of(rows, table, (), request.rows)
        return Preview(table.flow, what, result.total, result, bad_files, _new_column_notes(request.spark, table, rows))


def _sample(request: PreviewRequest, reader: Flow) -> Sample:
    """Returns some rows of the reader's source, or those of the file."""
    if not request.file:
        return sample.newest(request.spark, reader, request.rows)
    source = reader.source
    # A recomputed table reads rows, not changes.
    is_feed = source.changes and not reader.is_recomputed
    schema = readers.of(reader).columns(request.spark, request.tables, is_feed)
    is_of_files = source.reads_table and request.tables.tables[source.table].reads_files
    return sample.read_file(request.spark, request.file, schema, may_have_more=is_of_files)


def _whole_source(request: PreviewRequest, reader: Flow, source: Delta) -> Sample:
    version: int = sample.log_of(reader, source).newest
    if source.is_pinned:
        version, pinned_rows = refresh.pinned_rows(request.spark, reader.name, source)
        return Sample(pinned_rows, f"all rows of {source.table}, version {version}")
    rows = read_newest(request.spark, source.table)
    assert rows is not None
    return Sample(rows, f"all rows of {source.table}, version {version}")


def _read_files(spark: SparkSession, table: Flow, heads: list[FileHeader]) -> tuple[DataFrame, dict[str, str]]:
    """Returns the records of the readable files, and why the others cannot be read."""
    try:
        rows = batch_of_files.read(spark, table, heads, schema_evolution.plan_columns)
        rows.write.format("noop").mode("overwrite").save()
        return rows, {}
    except (PySparkException, Py4JJavaError):
        bad_files = {
            file.path: personal.sentence(table, file.reason)
            for file in batch_of_files.unreadable_files(spark, table, heads, {}, schema_evolution.plan_columns)
        }
        if not bad_files:
            raise
        return batch_of_files.read(
            spark, table, [file for file in heads if file.path not in bad_files], schema_evolution.plan_columns
        ), bad_files


@contextmanager
def _with_settings(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    previous = {key: str(spark.conf.get(key)) for key in conf}
    try:
        for key, value in conf.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, value in previous.items():
            spark.conf.set(key, value)


def _repeats(table: Table) -> Iterator[str]:
    if table.write.unique or any(isinstance(rule, Unique) for rule in table.expect):
        yield f"rows that repeat each other are found among these alone: what {table.name} holds is not looked at"


def _changes(table: Table) -> Iterator[str]:
    if table.merges_changes:
        yield f"changes are compared with each other alone: what {table.name} holds of their keys is not looked at"


def _lateness(table: Table, newest: int | None) -> Iterator[str]:
    if table.watermark and newest is None:
        yield f"no row is late: {table.name} holds none yet"
    elif table.watermark and newest is not None:
        moment = datetime.fromtimestamp(newest / 1_000_000, UTC).isoformat(sep=" ", timespec="seconds")
        by = f"more than {table.watermark.minutes:g} minutes before {moment}"
        yield f"late is what is {by}, the newest {table.watermark.of} that {table.name} holds now"


def _new_column_notes(spark: SparkSession, table: Table, rows: DataFrame) -> tuple[str, ...]:
    known = schema_evolution.schema_of(spark, table).fieldNames()
    new = [name for name in rows.columns if name not in known]
    return (f"the flow would add the columns {', '.join(new)}",) if new else ()
