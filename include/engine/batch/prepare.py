"""Builds what a flow's batches need of their rows once, on the streaming frame.

Spark plans it anew for each batch, but nobody has to build it anew, column by column, which takes thousands of calls
from Python. Only where each row is looked at by itself: a step that needs others would keep a state in a stream.
"""

from pyspark.sql import DataFrame

from include.engine.batch import quality, table_rows
from include.engine.batch.determinism import AnalysedPlan
from include.engine.files.schema_evolution import OWN
from include.rules import Expect, Rule
from include.spec import CHANGE_SCHEMA, Bucket, Delta, Files, Kafka, Table, Upsert, ddl


def prepared(rows: DataFrame, table: Table) -> DataFrame | None:
    """Rows of its source as its batches take them: judged, or of an aggregate the buckets they lie in.

    None where that has to be built for each batch.
    """
    if is_raw(table) or isinstance(table.source, Files) or has_no_columns_yet(rows, table):
        return None
    try:
        if isinstance(table.write, Upsert):
            made = starts(rows, table, table.write.recompute) if table.write.recompute else None
        else:
            is_simple = all(isinstance(rule, Expect) for rule in table.expect)
            made = with_violations(rows, table, table.expect) if is_simple else None
        return made if made is not None and AnalysedPlan(made, rows).can_stream else None
    except Exception:
        # The transform is somebody else's code, which may ask for what no stream has. A batch will say what is wrong.
        return None


def with_violations(rows: DataFrame, table: Table, rules: tuple[Rule, ...]) -> DataFrame:
    """Rows of its source as rows of the table, and which of the rules each breaks."""
    return quality.with_violations(table_rows.apply_transform(table_rows.apply_steps(rows, table), table), rules, table)


def starts(rows: DataFrame, table: Table, by: Bucket) -> DataFrame:
    """The bucket in which each row of its source lies."""
    return table_rows.starts(table_rows.apply_steps(rows, table), by)


def is_raw(table: Table) -> bool:
    """Whether the table takes the records of Kafka as they come."""
    return isinstance(table.source, Kafka) and not (table.parse or table.transform)


def has_no_columns_yet(rows: DataFrame, table: Table) -> bool:
    """Whether it reads a table of files before the first file has come: what it says of columns holds from then on."""
    bare = OWN | {name.lower() for name in ddl.columns(CHANGE_SCHEMA)}
    return isinstance(table.source, Delta) and {name.lower() for name in rows.columns} <= bare
