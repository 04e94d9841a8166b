"""Analyses every declaration with Spark, without reading or writing rows: python -m include.engine.check.check

The catalog refuses before this what needs no Spark.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from include import catalog
from include.catalog import Catalog
from include.engine.analysis_errors import line, plain, sentence
from include.engine.checked_schema import empty, schema_of
from include.engine.rows import deduplicate, quality, transform
from include.engine.rows.merge_changes import VALID_FROM
from include.engine.rows.transform import SOURCE, AnalysedPlan, apply, apply_join, apply_transform, tables_read
from include.engine.session import jvm_of, open_session
from include.engine.sources import delta_reader, readers
from include.errors import DeclarationError, SetupError, report
from include.lake import locations
from include.progress import Progress, counted
from include.project import personal
from include.project.declaration import declaration_error, suggest
from include.project.examination import Examination
from include.settings import settings
from include.spec import FILES_SCHEMA, Bucket, Cast, Expect, Flow, Lookup, PythonLimits, References, Rule, Table, ddl


def with_lookups(spark: SparkSession, source: DataFrame, table: Table, tables: Catalog) -> DataFrame:
    """Returns an empty source with the columns that its lookups add.

    Raises DeclarationError for a key that the rows lack, keys of different types, and columns that exist already.
    """
    parsed = transform.parsed(source, table).schema
    added = StructType()
    for lookup in table.lookups:
        dimension = delta_reader.table_columns(spark, lookup.table, tables)
        pairs = list(lookup.keys.items()) + ([(lookup.at, VALID_FROM)] if lookup.at else [])
        for name, key in pairs:
            _check_key(table, lookup, parsed, name, dimension[key].dataType)
        for name, column in lookup.added.items():
            if name.lower() in [field.name.lower() for field in parsed]:
                raise declaration_error(
                    table, f"the lookup of {lookup.table} adds '{name}', which its rows have already: give it a prefix"
                )
            added = added.add(name, dimension[column].dataType)
    return empty(spark, StructType([*source.schema, *added]))


def _check_key(table: Table, lookup: Lookup, rows: StructType, name: str, type_: DataType) -> None:
    names = rows.fieldNames()
    if name not in names:
        raise declaration_error(
            table, f"the lookup of {lookup.table} looks for '{name}', which its rows lack: {suggest(name, names)}"
        )
    if rows[name].dataType != type_:
        raise declaration_error(
            table,
            f"the lookup of {lookup.table} compares {name}, which is {rows[name].dataType.simpleString().upper()}, "
            f"with {type_.simpleString().upper()}: give them one type",
        )


def check(spark: SparkSession, tables: Catalog) -> None:
    """Raises DeclarationError with all sentences if the rows of a table would not match its declaration."""
    if sentences := examine(spark, tables).sentences:
        raise DeclarationError(*sentences)


def examine(spark: SparkSession, tables: Catalog, show: Callable[[str], None] = lambda words: None) -> Examination:
    """Analyses every table, except those that read a table whose columns are unknown because of an error.

    show: gets how far it is.
    """
    examination, unknown = Examination(), set()
    for table in (*tables.steps.values(), *tables.tables.values()):
        with examination.collect_mistakes(table.name, table.file):
            unknown.add(table.name)
            schema_of(table)
            unknown.discard(table.name)
            _check_properties(spark, table)
    # Steps come first, so that their errors are not reported for their readers.
    listed = (*tables.steps.values(), *tables.flows.values(), *tables.views.values())
    for number, table in enumerate(listed):
        name = table.flow if isinstance(table, Flow) else table.name
        show(f"{counted(number, len(listed), 'declarations analysed')}; next {name}")
        if unknown_sources := [name for name in _sources(table) if name in unknown]:
            examination.unchecked[table.name] = unknown_sources[0]
        elif table.name not in unknown:
            with examination.collect_mistakes(table.name, table.file):
                _check_table(spark, table, tables)
    return examination


def _check_table(spark: SparkSession, table: Table, tables: Catalog) -> None:
    try:
        if table.is_view:
            if not any(_is_unknown(reader, tables) for reader in table.readers):
                _check_view(spark, table, tables)
        else:
            for flow in table.flows:
                if not flow.reads_files and not _is_unknown(flow, tables):
                    _check_flow(spark, flow, tables)
    except (Py4JNetworkError, ConnectionError) as error:
        raise SetupError(f"Spark ended while it analysed {table.name}: see {_log()}") from error


def _check_flow(spark: SparkSession, table: Flow, tables: Catalog) -> None:
    source = _empty_source(spark, table, tables)
    _check_columns_of_files(table, source, tables)
    _check_sources(spark, table, {SOURCE})
    if table.write.recompute:
        source = _with_bucket(source, table, table.write.recompute)
    if table.lookups:
        source, table = with_lookups(spark, source, table, tables), replace(table, lookups=())
    rows = _declared_rows(source, table)
    _check_rows(table, rows, (source,), "write it as a recomputed Upsert", tables)
    if table.watermark:
        _check_timestamp(table, rows, "watermark", table.watermark.of)


def _check_columns_of_files(table: Flow, rows: DataFrame, tables: Catalog) -> None:
    """Raises DeclarationError for a Cast of a column that the files of the source have not had so far."""
    if not isinstance(table.parse, Cast) or not _reads_files(table, tables):
        return
    known = set(map(ddl.key, rows.columns))
    for name in table.parse.into:
        if ddl.key(name) not in known:
            raise declaration_error(
                table,
                f"Cast of '{name}', which {table.source.table} has not so far: declare `{name} STRING` in the schema "
                f"of {table.source.table}, and it is NULL until a file has it, or correct its name",
            )


def notes(tables: Catalog) -> list[str]:
    """Returns a sentence for each table that cannot be judged, because its columns come from files not yet read."""
    unknown = [flow for flow in tables.flows.values() if _is_unknown(flow, tables)]
    return [
        f"{flow.flow} is not judged, as {flow.source.table} gets its columns from its first files: declare in its "
        f"schema those that {flow.flow} needs, and they are NULL until a file has them"
        for flow in unknown
    ]


def personal_hints(tables: Catalog) -> list[str]:
    """Returns a sentence for each table with columns that look personal, and are not declared."""
    declared = {**tables.steps, **tables.tables}
    return [sentence for table in declared.values() for sentence in personal.hints(table, declared)]


def _reads_files(flow: Flow, tables: Catalog) -> bool:
    return not flow.steps and flow.source.reads_table and tables.tables[flow.source.table].reads_files


def _check_view(spark: SparkSession, view: Table, tables: Catalog) -> None:
    frames = {reader.branch or SOURCE: _empty_source(spark, reader, tables) for reader in view.readers}
    sources = tuple(frames.values())
    _check_sources(spark, view, set(frames))
    flattened_view = view
    if isinstance(view.source, Mapping) and (transform := view.transform):
        flattened_view = replace(view, transform=lambda _: apply_join(frames, transform))
    rows = _declared_rows(sources[0], flattened_view)
    _check_rows(view, rows, sources, "", tables)


def _sources(table: Table) -> list[str]:
    """Returns the tables and temporary steps whose columns the table needs."""
    sources = [source.table for source in table.upstream]
    looked_up = [lookup.table for lookup in table.lookups]
    return [*sources, *looked_up, *(step.name for step in table.steps)]


def _is_unknown(table: Flow, tables: Catalog) -> bool:
    """Whether the columns of its source come from files that no flow has read yet."""
    if table.steps or not table.source.reads_table:
        return False
    source = tables.tables[table.source.table]
    return source.schema == FILES_SCHEMA and not locations.is_stored(source.name)


def _empty_source(spark: SparkSession, table: Flow, tables: Catalog) -> DataFrame:
    if table.steps:
        return empty(spark, schema_of(table.steps[-1]))
    # A recomputed table reads rows, not changes.
    changes = table.source.changes and not table.is_recomputed
    return empty(spark, readers.of(table).columns(spark, tables, changes))


def _check_sources(spark: SparkSession, table: Table, names: set[str]) -> None:
    """Raises DeclarationError for SQL that reads anything but its named sources, or not all of them."""
    if not isinstance(table.transform, str):
        return
    try:
        tables = tables_read(spark, table.transform)
    except PySparkException as error:
        raise declaration_error(table, sentence(error, "its SQL", "fix it, it has to be one SELECT")) from error
    if undeclared := sorted(tables - names):
        raise declaration_error(table, _hidden_source(table, f"its SQL reads '{undeclared[0]}'"))
    if unread := sorted(names - tables):
        role = "a source of the view" if table.is_view else "the rows of its batch"
        raise declaration_error(table, f"its SQL never reads `{unread[0]}`, {role}: select from it")


def _with_bucket(source: DataFrame, table: Table, bucket: Bucket) -> DataFrame:
    _check_timestamp(table, source, "bucket", bucket.of)
    return source.withColumn(bucket.name, deduplicate.bucket(bucket.of, bucket.unit))


def _check_timestamp(table: Table, rows: DataFrame, role: str, column: str) -> None:
    type_name = rows.schema[column].dataType.simpleString().upper()
    # Spark casts a text or a date silently.
    if not type_name.startswith("TIMESTAMP"):
        where = " in its source" if role == "bucket" else ""
        raise declaration_error(table, f"{role} of '{column}', which is {type_name}{where}: name a TIMESTAMP")


def _declared_rows(source: DataFrame, table: Table) -> DataFrame:
    """Returns the rows of the table, in the columns of its schema. Raises DeclarationError if one of them is
    missing.
    """

    def transform(rows: DataFrame) -> DataFrame:
        transformed_rows = _transformed(rows, table) if table.transform else rows
        _check_columns(table, transformed_rows)
        _check_conditions(table, transformed_rows)
        return transformed_rows

    try:
        # A sentence about its Python functions comes later.
        checked = replace(table, transform=transform, python=table.python or PythonLimits(), pseudonymise=())
        return apply_transform(source, checked)
    except (PySparkException, Py4JJavaError) as error:
        raise declaration_error(table, sentence(error, "its parse" if table.parse else "its schema")) from error


def _check_rows(table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], instead: str, tables: Catalog) -> None:
    """Raises DeclarationError for types other than declared, rows that a replay could change, and wrong rules.

    instead: the remedy for a transform that needs other rows.
    """
    origin = "its transform makes" if table.transform or table.parse else "its source has"
    mistakes = [
        f"column '{declared.name}' is declared {declared.dataType.simpleString().upper()}, {origin} "
        f"{actual.dataType.simpleString().upper()}: change one of them"
        for declared, actual in ((field, rows.schema[field.name]) for field in _fields(table))
        if declared.dataType.simpleString() != actual.dataType.simpleString()
    ]
    if plan_mistake := _check_plan(table, rows, sources, "its transform", instead):
        mistakes.append(plan_mistake)
    if table.subject:
        try:
            rows.select(F.expr(f"CAST(({table.subject_expression}) AS STRING)"))
        except PySparkException as error:
            mistakes.append(sentence(error, "subject", "name a column, or fix its SQL"))
    mistakes += [rule_mistake for rule in table.expect if (rule_mistake := _check_reference(table, rows, rule, tables))]
    conditions = tuple(rule for rule in table.expect if isinstance(rule, Expect))
    # One plan for all rules costs as much as one for each. Each is analysed only if something is wrong.
    if conditions and (plan_mistake or not _all_valid(table, rows, sources, conditions)):
        # Without sources, an error of the transform is not reported for its rules.
        rule_mistakes = [_check_rule(table, rows, () if plan_mistake else sources, rule) for rule in conditions]
        mistakes += [rule_mistake for rule_mistake in rule_mistakes if rule_mistake]
    _refuse(table, mistakes)


def _check_properties(spark: SparkSession, table: Table) -> None:
    """Raises DeclarationError for properties that Delta would refuse."""
    jvm = jvm_of(spark)
    delta = jvm.org.apache.spark.sql.delta.DeltaConfigs
    mistakes = []
    for name, value in table.properties.items():
        try:
            delta.validateConfigurations(jvm.PythonUtils.toScalaMap({name: value}))
        except PySparkException as error:
            is_unknown = error.getCondition() == "DELTA_UNKNOWN_CONFIGURATION"
            reason = (
                "which Delta does not know: fix its name" if is_unknown else f"and Delta refuses it: {plain(error)}"
            )
            mistakes.append(f"properties set '{name}' to '{value}', {reason}")
    _refuse(table, mistakes)


def _refuse(table: Table, sentences: list[str]) -> None:
    if sentences:
        raise DeclarationError(*[str(declaration_error(table, text)) for text in sentences], table=table.name)


def _transformed(rows: DataFrame, table: Table) -> DataFrame:
    assert table.transform
    try:
        rows = apply(rows, table.transform)
    except Exception as error:
        # An error of a function has a line in the file; for SQL, Spark says where it is.
        subject = "its SQL" if isinstance(table.transform, str) else "its transform"
        raise declaration_error(table, sentence(error, subject), line(error, table)) from error
    if not isinstance(rows, DataFrame):
        raise declaration_error(table, f"its transform returns {type(rows).__name__} and no DataFrame: return its rows")
    return rows


def _check_columns(table: Table, rows: DataFrame) -> None:
    columns = [ddl.folded(name) for name in rows.columns]
    origin = "its transform" if table.transform else "its source"
    mistakes = []
    for name in (field.name for field in _fields(table)):
        if ddl.folded(name) not in columns:
            others = [column for column in rows.columns if column not in schema_of(table).fieldNames()]
            instead = "make it" if table.transform else "write a transform that makes it"
            hint = suggest(name, others, or_else=f"{instead}, or take it out of the schema")
            mistakes.append(f"{origin} lacks '{name}', which the schema names: {hint}")
        elif columns.count(ddl.folded(name)) > 1:
            mistakes.append(f"{origin} has two columns '{name}': rename one of them")
    _refuse(table, mistakes)


def _fields(table: Table) -> list[StructField]:
    """Returns the declared columns, without those that a merge of changes computes."""
    computed = ddl.columns(table.computed_schema) if table.computed_schema else []
    return [field for field in schema_of(table) if field.name not in computed]


def _check_conditions(table: Table, rows: DataFrame) -> None:
    write = table.write
    conditions = {"deletes": write.deletes, "truncates": write.truncates}
    for name, condition in conditions.items():
        if condition is None:
            continue
        try:
            type_name = rows.select(F.expr(condition)).schema.fields[0].dataType.simpleString().upper()
        except PySparkException as error:
            raise declaration_error(table, sentence(error, name, "fix its condition")) from error
        if type_name != "BOOLEAN":
            raise declaration_error(table, f"{name} is {type_name} and not a condition: compare it with something")


def _check_reference(table: Table, rows: DataFrame, rule: Rule, tables: Catalog) -> str | None:
    """Returns a sentence if the compared columns differ in type: Spark would cast one silently, and match nothing."""
    if not isinstance(rule, References):
        return None
    keys = schema_of(tables.tables[rule.table])
    column_type, key_type = (schema[name].dataType for schema, name in ((rows.schema, rule.column), (keys, rule.key)))
    if column_type == key_type:
        return None
    return (
        f"rule '{rule.name}' compares {rule.column}, which is {column_type.simpleString().upper()}, with {rule.key}, "
        f"which is {key_type.simpleString().upper()}: give them one type"
    )


def _all_valid(table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], rules: tuple[Expect, ...]) -> bool:
    try:
        conditions = rows.select(*[F.expr(rule.condition).alias(f"_{number}") for number, rule in enumerate(rules)])
        if any(field.dataType.simpleString() != "boolean" for field in conditions.schema):
            return False
        return _check_plan(table, quality.with_violations(rows, rules), sources, "", "") is None
    except PySparkException:
        return False


def _check_rule(table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], rule: Expect) -> str | None:
    subject = f"rule '{rule.name}'"
    try:
        type_name = rows.select(F.expr(rule.condition)).schema.fields[0].dataType.simpleString().upper()
        if type_name != "BOOLEAN":
            return f"{subject} is {type_name} and not a condition: compare it with something"
        checked_rows = quality.with_violations(rows, (rule,))
    except PySparkException as error:
        return sentence(error, subject, "fix its condition")
    return _check_plan(table, checked_rows, sources, subject, "let it speak of one row") if sources else None


def _check_plan(
    table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], subject: str, instead: str
) -> str | None:
    """Returns a sentence if the same rows could give another result, or if rows of other batches are needed."""
    plan = AnalysedPlan(rows, *sources)
    if plan.runs_python and (mistake := _python_mistake(table, plan)):
        return f"{subject} {mistake}"
    if plan.clock or not plan.is_deterministic:
        culprit = f"uses {plan.clock}()" if plan.clock else "is not deterministic"
        again = "a run that is begun again" if table.is_view else "a replayed batch"
        return f"{subject} {culprit}, so {again} would come out different: use source columns"
    if table.is_view or table.is_recomputed:
        return _hidden_source(table, f"{subject} reads a stored table") if plan.reads_stored_rows else None
    if name := plan.needs_other_rows:
        return f"{subject} needs rows of other batches ({name}): {instead}"
    return None


def _python_mistake(table: Table, plan: AnalysedPlan) -> str | None:
    if table.is_view or table.is_recomputed or table.temporary:
        return (
            "runs a Python function, which a view, an aggregate and a temporary step do not: use Spark's own "
            "functions, or let a stored table that appends rows run it"
        )
    if name := plan.refused_python:
        return f"runs the Python function '{name}' for single rows or groups: write it with arrow_udf or pandas_udf"
    if table.python is None:
        return (
            "runs a Python function without limits: declare them, python=PythonLimits(memory_mb=1024, seconds=60), or "
            "use Spark's own functions"
        )
    return None


def _hidden_source(table: Table, subject: str) -> str:
    if table.is_view:
        return (
            f"{subject} besides its sources, at a version that nobody fixes: name that table in source, and read it "
            f"by that name"
        )
    return (
        f"{subject} besides its source, which a replayed batch would find changed: "
        f"read `{SOURCE}` alone, or give the other rows a table of their own"
    )


@contextmanager
def _stderr_in_log() -> Iterator[None]:
    """Redirects what the JVM writes to standard error, at its start and later, to a file."""
    terminal = os.dup(2)
    _log().parent.mkdir(parents=True, exist_ok=True)
    try:
        with _log().open("wb") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _log() -> Path:
    return settings().logs / "check.log"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m include.engine.check.check", description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", help="of table files; without one, of this project")
    parser.add_argument("--drafts", action="store_true", help="check drafts, too")
    arguments = parser.parse_args()
    tables, examination = catalog.examine(*arguments.packages, with_drafts=arguments.drafts)
    with Progress(sys.stderr) as progress:
        progress.show("Spark starts")
        try:
            with _stderr_in_log():
                spark = open_session("sluice check", tables)
        except (PySparkException, Py4JJavaError) as error:
            raise SetupError(f"Spark did not start: see {_log()}") from error
        analysis = examine(spark, tables, progress.show)
        spark.stop()
    sentences = sorted([*examination.sentences, *analysis.sentences], key=lambda sentence: sentence.partition(":")[0])
    unjudged = (examination.unchecked | analysis.unchecked).items()
    if sentences:
        raise DeclarationError(*sentences, *(f"{name} is not judged, as it reads {other}" for name, other in unjudged))
    print(
        *notes(tables),
        *personal_hints(tables),
        f"{len(tables.tables) + len(tables.steps)} tables are as they declare",
        sep="\n",
    )


if __name__ == "__main__":
    report(main)
