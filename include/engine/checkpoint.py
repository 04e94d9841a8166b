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
    """One generation of a flow's checkpoint."""

    path: Path
    generation: int

    @property
    def next_batch(self) -> int:
        """The batch a start begins with: the planned one that was not finished, or the one after the last."""
        committed = ledger.last_committed(self.path)
        return 0 if committed is None else committed + 1


def claim(spark: SparkSession, table: Table) -> Checkpoint:
    """The newest generation, locked by this JVM, its owner written or checked. The caller holds the flow's lease.

    Raises LeaseHeld where another process has the file lock, FlowFailed where checkpoint and flow or table do not fit.
    """
    home = settings().checkpoints(table.name)
    home.mkdir(parents=True, exist_ok=True)
    _lock(spark, home / "lock", table.name)
    generation = ledger.newest_generation(home) or 1
    checkpoint = Checkpoint(home / str(generation), generation)
    checkpoint.path.mkdir(exist_ok=True)
    _check_owner(checkpoint, table)
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


def _check_owner(checkpoint: Checkpoint, table: Table) -> None:
    source = table.source
    owner = {
        "flow": table.name,
        "generation": checkpoint.generation,
        "source": f"kafka {source.topic}" if isinstance(source, Kafka) else f"delta {source.table}",
    }
    path = checkpoint.path / OWNER
    if not path.exists():
        path.write_text(json.dumps(owner))
    found = json.loads(path.read_text())
    if found != owner:
        raise FlowFailed(
            f"{table.name}: its checkpoint {checkpoint.path} belongs to {found}, not to {owner}, and Spark cannot "
            f"go on from there: put the declaration back"
        )


def _check_table(checkpoint: Checkpoint, table: Table) -> None:
    """Spark notices neither a lost checkpoint (every row twice) nor a lost table (the old rows are gone)."""
    app_id = txn_app_id(table.name, checkpoint.generation)
    stored = DeltaTable(str(settings().table_path(table.name))).transaction_version(app_id)
    written = -1 if stored is None else stored
    planned = ledger.last_planned(checkpoint.path)
    last_planned = -1 if planned is None else planned
    if written > last_planned:
        raise FlowFailed(
            f"{table.name}: the table holds batch {written}, its checkpoint {checkpoint.path} only knows "
            f"{last_planned}, so a start would write rows twice: restore that directory from its backup"
        )
    if written < checkpoint.next_batch - 1:
        raise FlowFailed(
            f"{table.name}: its checkpoint {checkpoint.path} is done with batch {checkpoint.next_batch - 1}, the table "
            f"holds only {written}, so a start would leave rows out: restore the table from its backup"
        )
