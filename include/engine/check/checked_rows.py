"""Checks the rows that a table's parse, transform and rules compute from the columns of its source."""

from dataclasses import replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from include.catalog import Catalog
from include.engine.batch import quality
from include.engine.batch.determinism import AnalysedPlan
from include.engine.batch.transform import SOURCE, apply, apply_transform
from include.engine.check.analysis_errors import line, plain, sentence
from include.engine.check.checked_schema import schema_of
from include.engine.session import jvm_of
from include.errors import DeclarationError
from include.project.declaration import declaration_error, suggest
from include.spec import Expect, References, Rule, Table, ddl


def declared_rows(source: DataFrame, table: Table) -> DataFrame:
    """Returns the rows of the table, in the columns of its schema. Raises DeclarationError if one of them is
    missing.
    """

    def transform(rows: DataFrame) -> DataFrame:
        transformed_rows = _transformed(rows, table) if table.transform else rows
        _check_columns(table, transformed_rows)
        _check_conditions(table, transformed_rows)
        return transformed_rows

    try:
        return apply_transform(source, replace(table, transform=transform))
    except (PySparkException, Py4JJavaError) as error:
        raise declaration_error(table, sentence(error, "its parse" if table.parse else "its schema")) from error


def check(table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], instead: str, tables: Catalog) -> None:
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
    mistakes += [rule_mistake for rule in table.expect if (rule_mistake := _check_reference(table, rows, rule, tables))]
    conditions = tuple(rule for rule in table.expect if isinstance(rule, Expect))
    # One plan for all rules costs as much as one for each. Each is analysed only if something is wrong.
    if conditions and (plan_mistake or not _all_valid(table, rows, sources, conditions)):
        # Without sources, an error of the transform is not reported for its rules.
        rule_mistakes = [_check_rule(table, rows, () if plan_mistake else sources, rule) for rule in conditions]
        mistakes += [rule_mistake for rule_mistake in rule_mistakes if rule_mistake]
    _refuse(table, mistakes)


def check_properties(spark: SparkSession, table: Table) -> None:
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


def hidden_source(table: Table, subject: str) -> DeclarationError:
    """Returns the error of a transform that reads more than its sources."""
    return declaration_error(table, _hidden_source(table, subject))


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
