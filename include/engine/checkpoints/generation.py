"""Begins a generation of a flow's checkpoint: the first, or one that goes on where the table's last commit ended."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from include.readers import landing_folder
from include.readers.offset_log import OWNER
from include.readers.resume_position import Beginning

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def begin(home: Path, number: int, owner: dict[str, Any], beginning: Beginning, spark: SparkSession) -> None:
    """Make the checkpoint directory `home/number`, whole or not at all. spark: whose settings its batches have."""
    new = home / f"{number}.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    is_seeded = beginning.offset is not None
    document = {**owner, "generation": number, "after": beginning.after, "first": int(is_seeded), "definitions": []}
    (new / OWNER).write_text(json.dumps(document))
    if is_seeded:
        _seed(new, beginning.offset, str(spark.conf.get(SHUFFLE_PARTITIONS)))
    if beginning.files:
        landing_folder.seed(new, list(beginning.files))
    new.rename(home / str(number))


def _seed(checkpoint: Path, offset: Any, shuffle_partitions: str) -> None:
    """A batch 0 that is done, in Spark's format, so that batch 1 starts at `offset`."""
    # A start that finds batch 1 planned and not done compares this with it, and fails where it is missing.
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
