"""A flow's checkpoint directory: whose it is, and whether it fits the table."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from include.control.resets import Reset
from include.engine.checkpoints import definition, generation, sibling_flows
from include.engine.tables.commit import txn_app_id
from include.errors import Broken, FlowFailed, LeaseHeld
from include.readers import checkpoint as ledger
from include.readers import offset_log, topics
from include.readers.kafka_retention import Lost
from include.readers.offset_log import OWNER
from include.readers.resume_position import Beginning, after_last_commit, identity, last_stamp
from include.recovery import unseeded_generations
from include.settings import settings
from include.spec import Kafka, Table


@dataclass(frozen=True)
class Checkpoint:
    """One generation of a flow's checkpoint, as a start finds it.

    committed: the last batch Spark knows to be done. written: the last batch the table holds, at most one more.
    Both are -1 before the first. last_commit: generation and batch of the flow's newest commit, None before the first.
    source: which topic or table it reads. deployed_from: the first batch made by today's definition, where that is new.
    has_older_rows: the batch before was made by one that makes other rows.
    lost: what of its topic this start skipped for good.
    """

    path: Path
    generation: int
    committed: int
    written: int
    last_commit: tuple[int, int] | None
    source: dict[str, Any]
    deployed_from: int | None = None
    has_older_rows: bool = False
    lost: tuple[Lost, ...] = ()


def claim(spark: SparkSession, table: Table, reset: Reset | None) -> Checkpoint:
    """The newest generation, locked by this JVM, its owner written or checked. The caller holds the flow's lease.

    reset: begin a new generation where the table's last commit ended, and skip what Kafka no longer holds where it
    accepts that. Raises LeaseHeld where another process has the file lock, Broken where checkpoint, flow, table and
    source do not fit, and Unreachable.
    """
    owner, home = identity(table), _own(spark, table)
    newest = ledger.newest_generation(home)
    if newest is None:
        sibling_flows.require_unread(table, owner["source"])
    number, beginning = newest or 1, Beginning()
    if reset:
        number, beginning = renew(spark, table, reset)
    elif newest is None:
        _require_no_commit(table)
        generation.begin(home, number, owner, beginning, spark)
    found = _open(home / str(number), number, table, owner)
    return replace(_deploy(found, table), lost=beginning.lost)


def renew(spark: SparkSession, table: Table, reset: Reset) -> tuple[int, Beginning]:
    """Begin the next generation, as `claim` does, and start nothing: its number, and where it goes on."""
    if unseeded_generations.awaits_its_seed(table):
        # What the refresh has read beyond the flow's last commit would be read twice.
        raise _unfinished(table)
    owner, home = identity(table), _own(spark, table)
    newest = ledger.newest_generation(home)
    beginning = after_last_commit(table, reset.accepts_loss)
    if newest is not None and beginning.after:
        _check_write(home / str(newest), owner, table)
    number = max(newest or 0, beginning.after[0] if beginning.after else 0) + 1
    generation.begin(home, number, owner, beginning, spark)
    return number, beginning


def _own(spark: SparkSession, table: Table) -> Path:
    """The directory of its checkpoints, locked."""
    home = settings().checkpoints(table.flow)
    home.mkdir(parents=True, exist_ok=True)
    _lock(spark, home / "lock", table.flow)
    return home


def release(flow: str) -> None:
    """Let another process claim it. Nothing of the flow may be running any more."""
    channel = _locked.pop(settings().checkpoints(flow) / "lock", None)
    if channel is not None:
        channel.close()


def _lock(spark: SparkSession, path: Path, flow: str) -> None:
    """Held by the JVM, because the JVM is what commits."""
    if path in _locked:
        return
    channel = spark._jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    if channel.tryLock() is None:
        raise LeaseHeld(f"the checkpoint of {flow} is locked by another process: find it (lsof {path}) and end it")
    _locked[path] = channel


# A lock goes when its channel is collected.
_locked: dict[Path, Any] = {}


def _require_no_commit(table: Table) -> None:
    stamp = last_stamp(table)
    if stamp:
        path = settings().checkpoints(table.flow) / str(stamp["generation"])
        raise _lost_checkpoint(table, path, f"batch {stamp['batch']}")


def _open(path: Path, number: int, table: Table, owner: dict[str, Any]) -> Checkpoint:
    found = offset_log.owner(path)
    _check_owner(found, owner, path, table)
    ledger.check(path)
    committed, newest = _number(ledger.last_committed(path)), _number(ledger.last_planned(path))
    stored = DeltaTable(str(settings().table_path(table.name)))
    if stored.transaction_version(txn_app_id(table.flow, number + 1)) is not None:
        raise _lost_checkpoint(table, path.parent / str(number + 1), "batches of that generation")
    # What comes before the generation's first batch was written by the generation before.
    before = found["first"] - 1
    written = max(_number(stored.transaction_version(txn_app_id(table.flow, number))), before)
    after = tuple(found["after"]) if found["after"] else None
    if after and _number(stored.transaction_version(txn_app_id(table.flow, after[0]))) < after[1]:
        raise _unfinished(table) if after[0] == number else _lost_table(table, path)
    _check_table(path, table, committed, newest, written)
    if isinstance(table.source, Kafka) and written >= 0:
        topics.require_unread(table, ledger.end_offset(path, written), owner["source"])
    opened = Checkpoint(
        path, number, committed, written, (number, written) if written > before else after, found["source"]
    )
    new = topics.added(found["source"], owner["source"]) if isinstance(table.source, Kafka) else {}
    return add_topics(opened, table, new) if new else opened


def _number(batch: int | None) -> int:
    return -1 if batch is None else batch


def _check_owner(found: dict[str, Any], owner: dict[str, Any], path: Path, table: Table) -> None:
    was = {key: found.get(key) for key in owner}
    if was == owner:
        return
    if isinstance(table.source, Kafka) and was == {**owner, "source": was["source"]}:
        topics.require_same(table, was["source"] or {}, owner["source"])
        if topics.goes_on(was["source"] or {}, owner["source"]):
            return
    raise _another_definition(table, path, was, owner)


def _another_definition(table: Table, path: Path, was: object, owner: object) -> Broken:
    return Broken(
        f"{table.flow}: its checkpoint {path} belongs to {was}, not to {owner}, and Spark cannot "
        f"go on from there: put the declaration back, give the new one a name of its own, or make all of it anew "
        f"(jobs/backfill.py --full)",
        "CHECKPOINT_OF_ANOTHER_DEFINITION",
    )


def _check_write(path: Path, owner: dict[str, Any], table: Table) -> None:
    """A new generation goes on in the old table, which has to have the same keys."""
    try:
        was = offset_log.owner(path)
    except Broken:
        # That is why it is reset.
        return
    if was.get("write") != owner["write"]:
        raise _another_definition(table, path, was.get("write"), owner["write"])


def _check_table(path: Path, table: Table, committed: int, newest: int, written: int) -> None:
    """Spark notices neither a lost checkpoint (every row twice) nor a lost table (the old rows are gone)."""
    if written > newest:
        raise _lost_checkpoint(table, path, f"batch {written}")
    if written < committed:
        raise _lost_table(table, path)


def _unfinished(table: Table) -> FlowFailed:
    return FlowFailed(
        f"{table.flow}: a full refresh of its table is not done, and a start would leave rows out or double them: wait "
        f"for it, or where it has died run it again (jobs/backfill.py --table {table.name} --full)"
    )


def _lost_table(table: Table, path: Path) -> Broken:
    return Broken(
        f"{table.flow}: its checkpoint {path} is done with batches that the table does not hold, so a start would "
        f"leave rows out: restore the table from its backup, or read all that the source still holds (action reset "
        f"checkpoint)",
        "TABLE_LOST",
    )


def _lost_checkpoint(table: Table, path: Path, written: str) -> Broken:
    return Broken(
        f"{table.flow}: the table holds {written}, which its checkpoint {path} does not know, so a start would "
        f"write rows twice: restore that directory from its backup, or begin a new generation where the table ends "
        f"(action reset checkpoint)",
        "CHECKPOINT_LOST",
    )


def _deploy(found: Checkpoint, table: Table) -> Checkpoint:
    """Write down from which batch on today's definition holds, where it is not yesterday's."""
    definitions, first = offset_log.owner(found.path)["definitions"], found.written + 1
    today = {"sha256": definition.fingerprint(table), "rows": definition.rows_fingerprint(table)}
    if definitions and definitions[-1]["sha256"] == today["sha256"]:
        if "rows" not in definitions[-1]:
            # It was written down by a build that did not tell what makes the rows.
            _write_owner(found.path, definitions=[*definitions[:-1], {**definitions[-1], **today}])
        return found
    before = definition.of_commit(found.path.parent, found.last_commit)
    # What is planned and not written is made by today's code too.
    _write_owner(found.path, definitions=[*definitions, {**today, "from_batch": first}])
    is_other = before is not None and before.get("rows") not in (None, today["rows"])
    return replace(found, deployed_from=first, has_older_rows=is_other)


def add_topics(found: Checkpoint, flow: Table, new: dict[str, str]) -> Checkpoint:
    """From now on it reads these topics too; written down before their first record is written.

    new: topic ids by name. Raises Broken where another flow of the table has read one of them.
    """
    sibling_flows.require_unread(flow, {"topics": new})
    source = {**found.source, "topics": {**found.source["topics"], **new}}
    _write_owner(found.path, source=source)
    return replace(found, source=source)


def _write_owner(path: Path, **changed: Any) -> None:
    # A rename, so that a kill leaves it whole.
    (path / f"{OWNER}.new").write_text(json.dumps({**offset_log.owner(path), **changed}))
    (path / f"{OWNER}.new").rename(path / OWNER)
