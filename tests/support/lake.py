"""Writes tables without Spark: commits with given times, and checkpoints in Spark's layout."""

import json
from typing import Any

from include.lake import locations
from include.lake.paths import LakePath, names
from tests.support.delta_log import added, commit, commit_info

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
SCHEMA = {
    "type": "struct",
    "fields": [{"name": "number", "type": "long", "nullable": True, "metadata": {"comment": "how many"}}],
}
INITIAL_ACTIONS = (
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {
        "metaData": {
            "id": "5b1b7a2e-0000-4000-8000-000000000000",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(SCHEMA),
            "partitionColumns": [],
            "configuration": {},
        }
    },
)


def data(name: str, rows: int, at: float, size: int = 100, **fields: Any) -> dict[str, Any]:
    """An `add` action for a file of `size` bytes. at: modification time in seconds since 1970."""
    return added(name, size, modificationTime=int(at * 1000), stats=json.dumps({"numRecords": rows}), **fields)


def next_version(table: LakePath) -> int:
    return sum(name.endswith(".json") for name in names(table / "_delta_log"))


def write(table: str, at: float, *actions: dict[str, Any], written: int | None = None, **user_metadata: Any) -> int:
    """Commit the next version of the table, and return the version.

    at: the commit time in seconds since 1970. written: the metric numOutputRows.
    """
    path = locations.table_path(table)
    version = next_version(path)
    info: dict[str, Any] = {"userMetadata": json.dumps(user_metadata)} if user_metadata else {}
    if written is not None:
        info["operationMetrics"] = {"numOutputRows": str(written)}
    commit(path, version, commit_info(at, **info), *(() if version else INITIAL_ACTIONS), *actions)
    return version


def rows(table: str, at: float, *counts: int, **user_metadata: Any) -> int:
    """Commit the next version with a file for each of these row counts. Returns the version."""
    path = locations.table_path(table)
    version = next_version(path)
    return write(
        table, at, *(data(f"{version}-{index}", count, at) for index, count in enumerate(counts)), **user_metadata
    )


def delta_offset(version: int, index: int = -1, is_first: bool = False) -> dict[str, Any]:
    return {
        "sourceVersion": 1,
        "reservoirId": "x",
        "reservoirVersion": version,
        "index": index,
        "isStartingVersion": is_first,
    }


def checkpoint(flow: str, *end_offsets: Any, is_planned: bool = False, generation: int = 1) -> LakePath:
    """Write a checkpoint whose batches end at these offsets. is_planned: the last batch is not committed."""
    directory = locations.checkpoints(flow) / str(generation)
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "metadata").write_text('{"id":"x"}')
    for batch, end_offset in enumerate(end_offsets):
        (directory / "offsets" / str(batch)).write_text(f"v1\n{SETTINGS}\n{json.dumps(end_offset)}")
        if not is_planned or batch < len(end_offsets) - 1:
            (directory / "commits" / str(batch)).write_text("v1\n{}")
    return directory


def planned_checkpoint(
    flow: str, planned: list[int], committed: int, index: int = 3, generation: int = 1, is_first: bool = False
) -> LakePath:
    """Write a checkpoint whose batches end at these versions. The first `committed` batches are committed."""
    directory = locations.checkpoints(flow) / str(generation)
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text('{"id":"x"}')
    for batch, version in enumerate(planned):
        offset = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": version, "index": index}
        text = json.dumps({**offset, "isStartingVersion": is_first})
        (directory / "offsets" / str(batch)).write_text(f"v1\n{SETTINGS}\n{text}")
        if batch < committed:
            (directory / "commits" / str(batch)).write_text("v1\n{}")
    return directory
