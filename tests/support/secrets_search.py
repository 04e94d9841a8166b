"""Searches everything that processes leave behind for secrets."""

import json
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import boto3
import pyarrow.parquet
from sqlalchemy import Engine, MetaData, select

from include.lake.paths import ObjectPath

PAGES = ("jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery")


def files_with(secrets: Iterable[str], directory: Path) -> set[Path]:
    """The files below the directory whose name or content has one of the secrets. Parquet is read, as it is packed."""
    return {file for file in directory.rglob("*") if file.is_file() and holds(content(file), secrets)}


def rows_with(secrets: Iterable[str], engine: Engine) -> set[str]:
    """The tables of the database with a row that has one of the secrets."""
    metadata = MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        texts = {table.name: repr(connection.execute(select(table)).all()) for table in metadata.sorted_tables}
    return {table for table, text in texts.items() if holds(text.encode(), secrets)}


def download(lake: ObjectPath, directory: Path) -> None:
    """Copies all objects below the lake into the directory."""
    client = boto3.client("s3")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=lake.bucket, Prefix=f"{lake.key}/"):
        for item in page["Contents"]:
            file = directory / item["Key"]
            file.parent.mkdir(parents=True, exist_ok=True)
            if not item["Key"].endswith("/"):
                client.download_file(lake.bucket, item["Key"], str(file))


def processes_with(secrets: Iterable[str]) -> list[str]:
    """The command lines on this machine that have one of the secrets."""
    command_lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        # A process may end meanwhile.
        with suppress(OSError):
            command_lines.append(file.read_bytes())
    return [line.decode(errors="replace") for line in command_lines if holds(line, secrets)]


def environments_with(secrets: Iterable[str], pids: Iterable[int]) -> list[str]:
    """The variables of these processes that have one of the secrets."""
    found = []
    for pid in pids:
        # A process may end meanwhile.
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if holds(entry, secrets):
                    found.append(f"{pid}: {entry.partition(b'=')[0].decode()}")
    return found


def holds(content: bytes, secrets: Iterable[str]) -> bool:
    """Whether the content has one of the secrets. They are of letters and digits, which no format escapes."""
    return any(secret.encode() in content for secret in secrets)


def ui_pages(port: int) -> Iterator[tuple[str, bytes]]:
    """The pages of Spark's UI and the answers of its REST API, with the address of each."""
    base = f"http://127.0.0.1:{port}"
    [application] = json.loads(_get(f"{base}/api/v1/applications"))
    api = f"{base}/api/v1/applications/{application['id']}"
    executions = json.loads(_get(f"{api}/sql?details=true&planDescription=true&length=10000"))
    assert executions, "the flows have run queries"
    addresses = [f"{base}/{page}/" for page in PAGES]
    addresses += [f"{api}/{part}" for part in ("environment", "jobs", "stages", "executors", "storage/rdd")]
    addresses += [f"{api}/sql?details=true&planDescription=true&length=10000"]
    addresses += [f"{base}/SQL/execution/?id={execution['id']}" for execution in executions[:20]]
    for address in addresses:
        yield address, _get(address)


def content(file: Path) -> bytes:
    """The name and the content of a file, as text where it is compressed; empty if it is gone."""
    with suppress(FileNotFoundError):
        # Files of other tests that landed may be damaged, and Arrow then ends the process.
        if file.suffix == ".parquet" and any((folder / "_delta_log").exists() for folder in file.parents):
            # Of a file that is not complete yet, the bytes are looked at.
            with suppress(pyarrow.ArrowInvalid):
                return str(file).encode() + repr(pyarrow.parquet.read_table(file).to_pylist()).encode()
        if file.name.startswith("control.db"):
            # A process that closes a file of SQLite loses its locks on it, and with them the database.
            return str(file).encode() + subprocess.check_output(["cat", str(file)])
        return str(file).encode() + file.read_bytes()
    return b""


def _get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as response:
        return bytes(response.read())
