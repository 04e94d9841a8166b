"""Adapts session settings to the size of a batch."""

from pyspark.sql import SparkSession

# Below this many rows, code generation costs more than it saves: half of a small batch's CPU time.
SMALL_BATCH_ROWS = 20_000
FOR_SMALL_BATCHES = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.adaptive.enabled": "false"}
# Spark's defaults. They are set explicitly, because a batch runs inside the execution of its stream, whose tasks would
# keep the settings of the last batch.
FOR_LARGE_BATCHES = {"spark.sql.codegen.factoryMode": "FALLBACK", "spark.sql.adaptive.enabled": "true"}


def tune(spark: SparkSession, expected_rows: int) -> None:
    """Sets the session's options for queries of about `expected_rows` rows."""
    for key, value in (FOR_SMALL_BATCHES if expected_rows < SMALL_BATCH_ROWS else FOR_LARGE_BATCHES).items():
        spark.conf.set(key, value)
