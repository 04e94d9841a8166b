"""Begins a generation of a flow's checkpoint: the first, or one that resumes at the end of the table's last commit."""

import json
import uuid
from typing import Any

from pyspark.sql import SparkSession

from include.checkpoints import landing_folder
from include.checkpoints.checkpoint_files import OWNER
from include.flows.source import StartPosition
from include.lake import directories
from include.lake.paths import LakePath

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def begin(home: LakePath, number: int, owner: dict[str, Any], beginning: StartPosition, spark: SparkSession) -> None:
    """Creates the checkpoint directory `home/number`, completely or not at all. spark: its settings apply to the
    batches.
    """
    is_seeded = beginning.offset is not None
    document = {"definitions": [], **owner, "generation": number, "after": beginning.after, "first": int(is_seeded)}
    with directories.new_directory(home / str(number)) as directory:
        (directory / OWNER).write_text(json.dumps(document))
        if is_seeded:
            _seed(directory, beginning.offset, str(spark.conf.get(SHUFFLE_PARTITIONS)))
        if beginning.files:
            landing_folder.seed_source_log(directory, list(beginning.files))


def _seed(checkpoint: LakePath, offset: Any, shuffle_partitions: str) -> None:
    """Writes a committed batch 0 in Spark's checkpoint format, so that batch 1 starts at `offset`."""
    # When batch 1 is planned but not committed, Spark compares this setting, and fails if it is missing.
    conf = {SHUFFLE_PARTITIONS: shuffle_partitions}
    settings_line = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf})
    files = {
        "metadata": json.dumps({"id": str(uuid.uuid4())}),
        "offsets/0": f"v1\n{settings_line}\n{json.dumps(offset)}",
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }
    for name, text in files.items():
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text(text)
