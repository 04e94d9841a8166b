"""Writes Delta commits: with the deltalake library, or by hand in the format of Spark."""

import json
from typing import Any

import pyarrow
from deltalake import CommitProperties, write_deltalake

from include.lake.paths import LakePath


def append(table: LakePath, rows: int = 3, user_metadata: str | None = None) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": user_metadata}) if user_metadata else None
    write_deltalake(str(table), pyarrow.table({"number": range(rows)}), mode="append", commit_properties=properties)


def commit(table: LakePath, version: int, *actions: dict[str, Any]) -> LakePath:
    """Write the JSON file of a commit."""
    file = table / "_delta_log" / f"{version:020}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps(action, separators=(",", ":")) for action in actions))
    return file


def added(path: str, size: int = 10, **fields: Any) -> dict[str, Any]:
    file = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 5_000, "dataChange": True, **fields}
    return {"add": file}


def removed(path: str, at_seconds: float = 7, **fields: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": int(at_seconds * 1_000), "dataChange": False, **fields}}


def commit_info(at_seconds: float = 7, **fields: Any) -> dict[str, Any]:
    return {"commitInfo": {"timestamp": int(at_seconds * 1_000), "operation": "WRITE", **fields}}
