"""A Delta log: commits by the deltalake library, and by hand as Spark writes them."""

import json
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import CommitProperties, write_deltalake


def append(table: Path, rows: int = 3, stamp: str | None = None) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": stamp}) if stamp else None
    write_deltalake(table, pyarrow.table({"number": range(rows)}), mode="append", commit_properties=properties)


def commit(table: Path, version: int, *actions: dict[str, Any]) -> Path:
    """A commit by hand."""
    file = table / "_delta_log" / f"{version:020}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps(action, separators=(",", ":")) for action in actions))
    return file


def added(path: str, size: int = 10, **more: Any) -> dict[str, Any]:
    file = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 5_000, "dataChange": True, **more}
    return {"add": file}


def removed(path: str, at_seconds: float = 7, **more: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": int(at_seconds * 1_000), "dataChange": False, **more}}


def commit_info(at_seconds: float = 7, **more: Any) -> dict[str, Any]:
    return {"commitInfo": {"timestamp": int(at_seconds * 1_000), "operation": "WRITE", **more}}
