"""What a table's parse, transform and rules make of the columns of its source."""

from dataclasses import replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.catalog import Catalog
from include.engine.batch import quality
from include.engine.batch.determinism import AnalysedPlan
from include.engine.batch.table_rows import apply_transform
from include.engine.batch.transform import SOURCE, transformed
from include.engine.check.analysis_errors import line, plain, sentence
from include.engine.check.checked_schema import schema_of
from include.errors import DeclarationError
from include.spec import Append, Expect, References, Rule, Table
from include.validation.declaration import mistake, suggest


def shaped_as_declared(source: DataFrame, table: Table) -> DataFrame:
    """The rows of the table. Raises DeclarationError where the source or the transform lacks one of its columns."""

    def transform(rows: DataFrame) -> DataFrame:
        made = _transformed(rows, table) if table.transform else rows
        _check_columns(table, made)
        return made

    try:
        return apply_transform(source, replace(table, transform=transform))
    except (PySparkException, Py4JJavaError) as error:
        raise mistake(table, sentence(error, "its parse" if table.parse else "its schema")) from error


def check(table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], instead: str, tables: Catalog) -> None:
    """Refuses other types than declared, what would not come out the same from the same rows, and wrong rules."""
    made = "its transform makes" if table.transform or table.parse else "its source has"
    wrong = [
        f"column '{want.name}' is declared {want.dataType.simpleString().upper()}, {made} "
        f"{got.dataType.simpleString().upper()}: change one of them"
        for want, got in zip(schema_of(table), rows.schema, strict=True)
        if want.dataType.simpleString() != got.dataType.simpleString()
    ]
    if of_plan := _of_plan(table, rows, sources, "its transform", instead):
        wrong.append(of_plan)
    wrong += [found for rule in table.expect if (found := _of_reference(table, rows, rule, tables))]
    conditions = tuple(rule for rule in table.expect if isinstance(rule, Expect))
    # One plan for all of them costs what one for each does; each is looked at where something is wrong.
    if conditions and (of_plan or not _are_right(table, rows, sources, conditions)):
        # What is wrong with the transform is no mistake of its rules.
        found = [_of_rule(table, rows, () if of_plan else sources, rule) for rule in conditions]
        wrong += [one for one in found if one]
    _refuse(table, wrong)


def check_properties(spark: SparkSession, table: Table) -> None:
    """Raises DeclarationError for properties that Delta would refuse."""
    assert spark._jvm
    delta = spark._jvm.org.apache.spark.sql.delta.DeltaConfigs
    wrong = []
    for name, value in table.properties.items():
        try:
            delta.validateConfigurations(spark._jvm.PythonUtils.toScalaMap({name: value}))
        except PySparkException as error:
            is_unknown = error.getCondition() == "DELTA_UNKNOWN_CONFIGURATION"
            why = "which Delta does not know: mend its name" if is_unknown else f"and Delta refuses it: {plain(error)}"
            wrong.append(f"properties set '{name}' to '{value}', {why}")
    _refuse(table, wrong)


def hidden_source(table: Table, what: str) -> DeclarationError:
    """What is said where a transform reads more than its sources."""
    return mistake(table, _hidden_source(table, what))


def _refuse(table: Table, sentences: list[str]) -> None:
    if sentences:
        raise DeclarationError(*[str(mistake(table, one)) for one in sentences], table=table.name)


def _transformed(rows: DataFrame, table: Table) -> DataFrame:
    assert table.transform
    try:
        made = transformed(rows, table.transform)
    except Exception as error:
        # A function of the file has a line; of SQL, Spark says where.
        what = "its SQL" if isinstance(table.transform, str) else "its transform"
        raise mistake(table, sentence(error, what), line(error, table)) from error
    if not isinstance(made, DataFrame):
        raise mistake(table, f"its transform returns {type(made).__name__} and no DataFrame: return its rows")
    return made


def _check_columns(table: Table, made: DataFrame) -> None:
    columns = [name.lower() for name in made.columns]
    whose = "its transform" if table.transform else "its source"
    wrong = []
    for name in schema_of(table).fieldNames():
        if name.lower() not in columns:
            others = [one for one in made.columns if one not in schema_of(table).fieldNames()]
            instead = "make it" if table.transform else "write a transform that makes it"
            hint = suggest(name, others, or_else=f"{instead}, or take it out of the schema")
            wrong.append(f"{whose} lacks '{name}', which the schema names: {hint}")
        elif columns.count(name.lower()) > 1:
            wrong.append(f"{whose} has two columns '{name}': rename one of them")
    _refuse(table, wrong)


def _of_reference(table: Table, rows: DataFrame, rule: Rule, tables: Catalog) -> str | None:
    """Spark would cast one of two types silently, and find nothing."""
    if not isinstance(rule, References):
        return None
    keys = schema_of(tables.tables[rule.table])
    mine, theirs = (one[name].dataType for one, name in ((rows.schema, rule.column), (keys, rule.key)))
    if mine == theirs:
        return None
    return (
        f"rule '{rule.name}' compares {rule.column}, which is {mine.simpleString().upper()}, with {rule.key}, "
        f"which is {theirs.simpleString().upper()}: give them one type"
    )


def _are_right(table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], rules: tuple[Expect, ...]) -> bool:
    try:
        conditions = rows.select(*[F.expr(rule.condition).alias(f"_{n}") for n, rule in enumerate(rules)])
        if any(field.dataType.simpleString() != "boolean" for field in conditions.schema):
            return False
        return _of_plan(table, quality.with_violations(rows, rules), sources, "", "") is None
    except PySparkException:
        return False


def _of_rule(table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], rule: Expect) -> str | None:
    what = f"rule '{rule.name}'"
    try:
        kind = rows.select(F.expr(rule.condition)).schema.fields[0].dataType.simpleString().upper()
        if kind != "BOOLEAN":
            return f"{what} is {kind} and not a condition: compare it with something"
        judged = quality.with_violations(rows, (rule,))
    except PySparkException as error:
        return sentence(error, what, "mend its condition")
    return _of_plan(table, judged, sources, what, "let it speak of one row") if sources else None


def _of_plan(table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], what: str, instead: str) -> str | None:
    """What would not come out the same from the same rows, or would from other batches of them."""
    plan = AnalysedPlan(rows, *sources)
    if plan.runs_python:
        return f"{what} runs a Python function, and executors have none of our code: use Spark's own functions"
    if plan.clock or not plan.is_deterministic:
        culprit = f"uses {plan.clock}()" if plan.clock else "is not deterministic"
        again = "a run that is begun again" if table.is_view else "a replayed batch"
        return f"{what} {culprit}, so {again} would come out different: use source columns"
    if not isinstance(table.write, Append):
        return _hidden_source(table, f"{what} reads a stored table") if plan.reads_stored_rows else None
    if name := plan.needs_other_rows:
        return f"{what} needs rows of other batches ({name}): {instead}"
    return None


def _hidden_source(table: Table, what: str) -> str:
    if table.is_view:
        return (
            f"{what} besides its sources, at a version that nobody fixes: name that table in source, and read it "
            f"by that name"
        )
    return (
        f"{what} besides its source, which a replayed batch would find changed: "
        f"read `{SOURCE}` alone, or give the other rows a table of their own"
    )
