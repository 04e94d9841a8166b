"""Session settings by the size of a batch."""

from pyspark.sql import SparkSession

# Below this many rows, generating and compiling code costs more than it saves: half of a small batch's CPU.
SMALL_BATCH_ROWS = 20_000
FOR_SMALL_BATCHES = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.adaptive.enabled": "false"}
# Spark's defaults. They are set, not unset: a batch runs inside the execution of its stream, whose tasks would go on
# with the settings of the batch before.
FOR_LARGE_BATCHES = {"spark.sql.codegen.factoryMode": "FALLBACK", "spark.sql.adaptive.enabled": "true"}


def tune(spark: SparkSession, expected_rows: int) -> None:
    """Let the session's next queries suit so many rows."""
    for key, value in (FOR_SMALL_BATCHES if expected_rows < SMALL_BATCH_ROWS else FOR_LARGE_BATCHES).items():
        spark.conf.set(key, value)
