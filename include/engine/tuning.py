"""Session settings by the size of a batch."""

from pyspark.sql import SparkSession

# Below this many rows, generating and compiling code costs more than it saves: half of a small batch's CPU.
SMALL_BATCH_ROWS = 20_000
FOR_SMALL_BATCHES = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.adaptive.enabled": "false"}


def tune(spark: SparkSession, expected_rows: int) -> None:
    """Let the session's next queries suit so many rows."""
    for key, value in FOR_SMALL_BATCHES.items():
        if expected_rows < SMALL_BATCH_ROWS:
            spark.conf.set(key, value)
        else:
            spark.conf.unset(key)
