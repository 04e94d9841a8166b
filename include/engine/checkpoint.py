"""A flow's checkpoint directory: whose it is, and whether it fits the table."""

import json
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from include.engine.commit import txn_app_id
from include.errors import FlowFailed, LeaseHeld
from include.ledger import checkpoint as ledger
from include.settings import settings
from include.spec import Kafka, Table

OWNER = "owner.json"


@dataclass(frozen=True)
class Checkpoint:
    """One generation of a flow's checkpoint, as a start finds it.

    committed: the last batch Spark knows to be done. written: the last batch the table holds, at most one more.
    Both are -1 before the first.
    """

    path: Path
    generation: int
    committed: int
    written: int


def claim(spark: SparkSession, table: Table) -> Checkpoint:
    """The newest generation, locked by this JVM, its owner written or checked. The caller holds the flow's lease.

    Raises LeaseHeld where another process has the file lock, FlowFailed where checkpoint and flow or table do not fit.
    """
    home = settings().checkpoints(table.name)
    home.mkdir(parents=True, exist_ok=True)
    _lock(spark, home / "lock", table.name)
    generation = ledger.newest_generation(home) or 1
    path = home / str(generation)
    path.mkdir(exist_ok=True)
    _check_owner(path, generation, table)
    committed = ledger.last_committed(path)
    stored = DeltaTable(str(settings().table_path(table.name)))
    written = stored.transaction_version(txn_app_id(table.name, generation))
    checkpoint = Checkpoint(
        path, generation, -1 if committed is None else committed, -1 if written is None else written
    )
    _check_table(checkpoint, table)
    return checkpoint


def _lock(spark: SparkSession, path: Path, flow: str) -> None:
    """Held by the JVM until it ends, because the JVM is what commits."""
    if path in _locked:
        return
    channel = spark._jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    if channel.tryLock() is None:
        raise LeaseHeld(f"the checkpoint of {flow} is locked by another process: find it (lsof {path}) and end it")
    _locked[path] = channel


# A lock goes when its channel is collected.
_locked: dict[Path, object] = {}


def _check_owner(path: Path, generation: int, table: Table) -> None:
    source = table.source
    owner = {
        "flow": table.name,
        "generation": generation,
        "source": f"kafka {source.topic}" if isinstance(source, Kafka) else f"delta {source.table}",
    }
    if not (path / OWNER).exists():
        # A rename, so that a kill leaves it whole or not there.
        (path / f"{OWNER}.new").write_text(json.dumps(owner))
        (path / f"{OWNER}.new").rename(path / OWNER)
    found = json.loads((path / OWNER).read_text())
    if found != owner:
        raise FlowFailed(
            f"{table.name}: its checkpoint {path} belongs to {found}, not to {owner}, and Spark cannot "
            f"go on from there: put the declaration back"
        )


def _check_table(checkpoint: Checkpoint, table: Table) -> None:
    """Spark notices neither a lost checkpoint (every row twice) nor a lost table (the old rows are gone)."""
    planned = ledger.last_planned(checkpoint.path)
    last_planned = -1 if planned is None else planned
    if checkpoint.written > last_planned:
        raise FlowFailed(
            f"{table.name}: the table holds batch {checkpoint.written}, its checkpoint {checkpoint.path} only knows "
            f"{last_planned}, so a start would write rows twice: restore that directory from its backup"
        )
    if checkpoint.written < checkpoint.committed:
        raise FlowFailed(
            f"{table.name}: its checkpoint {checkpoint.path} is done with batch {checkpoint.committed}, the table "
            f"holds only {checkpoint.written}, so a start would leave rows out: restore the table from its backup"
        )
