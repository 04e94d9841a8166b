"""A flow's checkpoint directory: which flow owns it, and whether it fits the table."""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from include.checkpoints import checkpoint_files
from include.checkpoints.checkpoint_files import OWNER
from include.control.flows.resets import Reset
from include.control.skips import Skip
from include.delta import commit_history, stored_table
from include.engine.checkpoints import definition, generation
from include.engine.commit import txn_app_id
from include.engine.session import jvm_of
from include.errors import FlowBroken, FlowFailed, LeaseHeld
from include.flows import sources
from include.flows.resume_position import after_last_commit, identity, last_commit_metadata
from include.flows.source import StartPosition
from include.kafka.retention import LostOffsets
from include.lake import directories, locations
from include.lake.paths import LakePath, names
from include.recovery import unseeded_generations
from include.spec import Flow


def require_unread(flow: Flow, source: dict[str, Any]) -> None:
    """Raises FlowBroken if another flow has read this source into the table: its rows would come twice.

    That flow may have had another name, or may have been the table's only flow.
    """
    of_table = (name for name in names(locations.all_checkpoints()) if name.startswith(f"{flow.name}."))
    others = [flow.name, *sorted(of_table)]
    for other in others:
        if other != flow.flow and _overlap(_source(other), source):
            raise FlowBroken(
                f"{flow.flow}: flow {other} has read {source} into {flow.name} already, so its rows would come twice: "
                f"give the branch its old name back ('' is that of the flow that bears the table's name)",
                "CHECKPOINT_OF_ANOTHER_DEFINITION",
            )


def _overlap(source: dict[str, Any], other_source: dict[str, Any]) -> bool:
    """Whether both sources deliver some of the same records."""
    if "topics" in source and "topics" in other_source:
        return not source["topics"].items().isdisjoint(other_source["topics"].items())
    return source == other_source


def _source(flow: str) -> dict[str, Any]:
    """Returns the source that a flow's newest checkpoint names; empty if it names none."""
    home = locations.checkpoints(flow)
    generation = checkpoint_files.newest_generation(home)
    with suppress(FlowBroken, ValueError, KeyError):
        return dict(checkpoint_files.owner(home / str(generation))["source"])
    return {}


@dataclass(frozen=True)
class Checkpoint:
    """One generation of a flow's checkpoint, as a start finds it.

    committed: the last batch in Spark's commit log. written: the last batch that the table holds, at most one more.
    Both are -1 before the first. last_commit: generation and batch of the flow's newest commit, if any. source: its
    topics or table. deployed_from: the first batch by today's definition, if that is new. has_older_rows: the last
    definition computed other rows. lost: records of the topic that this start skipped for good. skip: the batch to
    leave out, if that is its first one.
    """

    path: LakePath
    generation: int
    committed: int
    written: int
    last_commit: tuple[int, int] | None
    source: dict[str, Any]
    deployed_from: int | None = None
    has_older_rows: bool = False
    lost: tuple[LostOffsets, ...] = ()
    skip: Skip | None = None


def claim(spark: SparkSession, table: Flow, reset: Reset | None) -> Checkpoint:
    """Returns the newest generation, locked by this JVM, with its owner file written or checked. The caller holds the
    flow's lease.

    reset: begins a new generation at the end of the table's last commit; skips what Kafka no longer holds if it accepts
    that. Raises LeaseHeld if another process has the file lock, FlowBroken if checkpoint, flow, table and source do not
    match, and Unreachable.
    """
    owner, directory = identity(table), _lock_home(spark, table)
    newest = checkpoint_files.newest_generation(directory)
    if newest is None:
        require_unread(table, owner["source"])
    number, beginning = newest or 1, StartPosition()
    if reset:
        number, beginning = begin_next_generation(spark, table, reset)
    elif newest is None:
        _require_no_commit(table)
        generation.begin(directory, number, owner, beginning, spark)
    flow_checkpoint = _open(directory / str(number), number, table, owner)
    return replace(_deploy(flow_checkpoint, table), lost=beginning.lost)


def begin_next_generation(spark: SparkSession, table: Flow, reset: Reset) -> tuple[int, StartPosition]:
    """Begins the next generation, as `claim` does. Returns its number and where it resumes."""
    if unseeded_generations.lacks_seed_commit(table):
        # The flow would read again what the refresh has read after the flow's last commit.
        raise _unfinished_refresh_error(table)
    owner, directory = identity(table), _lock_home(spark, table)
    newest = checkpoint_files.newest_generation(directory)
    beginning = after_last_commit(table, reset.accepts_loss)
    if newest is not None and beginning.after:
        _check_write(directory / str(newest), owner, table)
    number = max(newest or 0, beginning.after[0] if beginning.after else 0) + 1
    generation.begin(directory, number, owner, beginning, spark)
    return number, beginning


def _lock_home(spark: SparkSession, table: Flow) -> LakePath:
    """Locks and returns the directory of the flow's checkpoints."""
    lock = locations.checkpoint_lock(table.flow)
    lock.parent.mkdir(parents=True, exist_ok=True)
    _lock(spark, lock, table.flow)
    return locations.checkpoints(table.flow)


def release(flow: str) -> None:
    """Lets another process claim the checkpoint. No query of the flow may be running."""
    channel = _locked.pop(locations.checkpoint_lock(flow), None)
    if channel is not None:
        channel.close()


def _lock(spark: SparkSession, path: Path, flow: str) -> None:
    """Takes a file lock that the JVM holds, because the JVM commits."""
    if path in _locked:
        return
    channel = jvm_of(spark).java.io.RandomAccessFile(str(path), "rw").getChannel()
    if channel.tryLock() is None:
        raise LeaseHeld(f"the checkpoint of {flow} is locked by another process: find it (lsof {path}) and end it")
    _locked[path] = channel


# References the channels, because a lock ends when its channel is garbage-collected.
_locked: dict[Path, Any] = {}


def _require_no_commit(table: Flow) -> None:
    metadata = last_commit_metadata(table)
    if metadata:
        path = locations.checkpoints(table.flow) / str(metadata["generation"])
        raise _checkpoint_lost_error(table, path, f"batch {metadata['batch']}")


def _open(path: LakePath, generation_number: int, table: Flow, owner: dict[str, Any]) -> Checkpoint:
    stored_owner = checkpoint_files.owner(path)
    _check_owner(stored_owner, owner, path, table)
    checkpoint_files.check(path)
    committed, planned = (
        _batch_number(checkpoint_files.last_committed(path)),
        _batch_number(checkpoint_files.last_planned(path)),
    )
    stored = stored_table.open_table(table.name)
    if stored.transaction_version(txn_app_id(table.flow, generation_number + 1)) is not None:
        raise _checkpoint_lost_error(table, path.parent / str(generation_number + 1), "batches of that generation")
    # The generation before wrote the batches before this generation's first.
    first_batch = stored_owner["first"] - 1
    written = max(_batch_number(stored.transaction_version(txn_app_id(table.flow, generation_number))), first_batch)
    after = tuple(stored_owner["after"]) if stored_owner["after"] else None
    if after and _batch_number(stored.transaction_version(txn_app_id(table.flow, after[0]))) < after[1]:
        raise _unfinished_refresh_error(table) if after[0] == generation_number else _table_lost_error(table, path)
    _check_table(path, table, committed, planned, written)
    if written > first_batch:
        require_unrestored(table, (generation_number, written))
    if written >= 0:
        sources.of(table).require_unread_available(path, written, owner["source"])
    flow_checkpoint = Checkpoint(
        path,
        generation_number,
        committed,
        written,
        (generation_number, written) if written > first_batch else after,
        stored_owner["source"],
    )
    new_topics = sources.of(table).added(stored_owner["source"], owner["source"])
    return add_topics(flow_checkpoint, table, new_topics) if new_topics else flow_checkpoint


def _batch_number(batch: int | None) -> int:
    return -1 if batch is None else batch


def _check_owner(stored_owner: dict[str, Any], owner: dict[str, Any], path: LakePath, table: Flow) -> None:
    stored_identity = {key: stored_owner.get(key) for key in owner}
    if stored_identity == owner:
        return
    source = stored_identity["source"]
    if stored_identity == {**owner, "source": source} and sources.of(table).continues(source or {}, owner["source"]):
        return
    raise _definition_error(table, path, stored_identity, owner)


def _definition_error(table: Flow, path: LakePath, stored_owner: object, owner: object) -> FlowBroken:
    return FlowBroken(
        f"{table.flow}: its checkpoint {path} belongs to {stored_owner}, not to {owner}, and Spark cannot "
        f"go on from there: restore the declaration, give the new one a name of its own, or rebuild the whole table "
        f"(jobs/backfill.py --full)",
        "CHECKPOINT_OF_ANOTHER_DEFINITION",
    )


def _check_write(path: LakePath, owner: dict[str, Any], table: Flow) -> None:
    """Raises FlowBroken if the write mode changed: the new generation writes the same table, with the same keys."""
    try:
        stored_owner = checkpoint_files.owner(path)
    except FlowBroken:
        # A damaged owner file is a reason for a reset.
        return
    if stored_owner.get("write") != owner["write"]:
        raise _definition_error(table, path, stored_owner.get("write"), owner["write"])


def _check_table(path: LakePath, table: Flow, committed: int, newest: int, written: int) -> None:
    """Raises FlowBroken for a lost checkpoint (all rows twice) or a lost table (old rows missing); Spark notices
    neither.
    """
    if written > newest:
        raise _checkpoint_lost_error(table, path, f"batch {written}")
    if written < committed:
        raise _table_lost_error(table, path)


def require_unrestored(table: Flow, written: tuple[int, int]) -> None:
    """Raises FlowBroken if a RESTORE by hand has undone the flow's newest batch. written: its generation and batch."""
    last = last_commit_metadata(table)
    if last and (int(last["generation"]), int(last["batch"])) < written:
        raise commit_history.restored_error(table.flow, f"behind batch {last['generation']}/{last['batch']}")


def _unfinished_refresh_error(table: Flow) -> FlowFailed:
    return FlowFailed(
        f"{table.flow}: a full refresh of its table is not done, and a start would leave rows out or double them: wait "
        f"for it, or where it has died run it again (jobs/backfill.py --table {table.name} --full)"
    )


def _table_lost_error(table: Flow, path: LakePath) -> FlowBroken:
    return FlowBroken(
        f"{table.flow}: its checkpoint {path} is done with batches that the table does not hold, so a start would "
        f"leave rows out: restore the table from its backup, or read all that the source still holds (action reset "
        f"checkpoint)",
        "TABLE_LOST",
    )


def _checkpoint_lost_error(table: Flow, path: LakePath, written: str) -> FlowBroken:
    return FlowBroken(
        f"{table.flow}: the table holds {written}, which its checkpoint {path} does not know, so a start would "
        f"write rows twice: restore that directory from its backup, or begin a new generation where the table ends "
        f"(action reset checkpoint)",
        "CHECKPOINT_LOST",
    )


def _deploy(flow_checkpoint: Checkpoint, table: Flow) -> Checkpoint:
    """Records the batch from which today's definition holds, if it is new."""
    definitions, first = checkpoint_files.owner(flow_checkpoint.path)["definitions"], flow_checkpoint.written + 1
    today = {"sha256": definition.fingerprint(table), "rows": definition.rows_fingerprint(table)}
    if definitions and definitions[-1]["sha256"] == today["sha256"]:
        if "rows" not in definitions[-1]:
            # Older builds did not record the fingerprint of the rows.
            _write_owner(flow_checkpoint.path, definitions=[*definitions[:-1], {**definitions[-1], **today}])
        return flow_checkpoint
    previous = definition.of_commit(flow_checkpoint.path.parent, flow_checkpoint.last_commit)
    # Today's code also writes the batch that is planned but not written.
    _write_owner(flow_checkpoint.path, definitions=[*definitions, {**today, "from_batch": first}])
    is_other = previous is not None and previous.get("rows") not in (None, today["rows"])
    return replace(flow_checkpoint, deployed_from=first, has_older_rows=is_other)


def add_topics(flow_checkpoint: Checkpoint, flow: Flow, new_topics: dict[str, str]) -> Checkpoint:
    """Adds topics to the checkpoint's source before their first record is written. new_topics: ids by name.

    Raises FlowBroken if another flow of the table has read one of them.
    """
    require_unread(flow, {"topics": new_topics})
    source = {**flow_checkpoint.source, "topics": {**flow_checkpoint.source["topics"], **new_topics}}
    _write_owner(flow_checkpoint.path, source=source)
    return replace(flow_checkpoint, source=source)


def _write_owner(path: LakePath, **changed: Any) -> None:
    directories.write_text(path / OWNER, json.dumps({**checkpoint_files.owner(path), **changed}))
