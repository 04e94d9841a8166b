"""Creates the Delta tables that the declarations describe."""

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.engine.session import register
from include.settings import settings
from include.spec import Append, Kafka, Table

PROPERTIES = {
    # Cleaning the log inside a writer could take a version that some stream has yet to read.
    "delta.enableExpiredLogCleanup": "false",
}

# What a quarantined row carries beside its own columns.
QUARANTINE_SCHEMA = """
    _rules ARRAY<STRING> COMMENT 'the expectations it broke',
    _flow STRING COMMENT 'the flow that read it',
    _generation INT COMMENT 'generation of that flow''s checkpoint',
    _batch BIGINT COMMENT 'batch of that generation',
    _source STRING COMMENT 'JSON: where the batch ends in its source'
"""


def create(spark: SparkSession, table: Table) -> None:
    """Create the table, and its quarantine where it has expectations; existing ones stay as they are."""
    properties = dict(PROPERTIES)
    if isinstance(table.source, Kafka):
        # So that the payload is not searched for its smallest and greatest value.
        properties["delta.dataSkippingStatsColumns"] = "timestamp,partition,offset"
    if isinstance(table.write, Append):
        properties["delta.appendOnly"] = "true"
    schema = StructType.fromDDL(table.schema)
    _create(spark, table.name, schema, table.comment, {**properties, **table.properties})
    if table.expect:
        fields = schema.fields + StructType.fromDDL(QUARANTINE_SCHEMA).fields
        comment = f"Rows that broke an expectation of {table.name}"
        _create(spark, table.quarantine, StructType(fields), comment, PROPERTIES)


def _create(spark: SparkSession, name: str, schema: StructType, comment: str, properties: dict[str, str]) -> None:
    path = settings().table_path(name)
    if not (path / "_delta_log").is_dir():
        builder = DeltaTable.createIfNotExists(spark).location(str(path)).comment(comment).addColumns(schema)
        for key, value in properties.items():
            builder = builder.property(key, value)
        builder.execute()
    register(spark, name)
