"""Finds generations that a full refresh has begun. No flow starts in them before the refresh has committed."""

from contextlib import suppress

from include.checkpoints import checkpoint_files
from include.delta import commit_history
from include.delta.delta_log import DeltaLog
from include.errors import FlowBroken
from include.flows.batches import BACKFILL
from include.lake import directories, locations
from include.spec import Flow, Table

# The only batch of such a generation: the shadow table has read it.
SEED = 0


def discard(table: Table) -> None:
    """Withdraws the generations that an earlier attempt began without a commit, because their flows cannot start."""
    for flow in table.flows:
        checkpoints = locations.checkpoints(flow.flow)
        number = checkpoint_files.newest_generation(checkpoints)
        if number is None or number == _newest_committed(flow):
            continue
        with suppress(FlowBroken):
            if checkpoint_files.owner(checkpoints / str(number)).get("after") == [number, SEED]:
                directories.withdraw(checkpoints / str(number))


def _newest_committed(flow: Flow) -> int | None:
    """Returns the newest generation in the table's commits; None where there is none."""
    for commit in DeltaLog(locations.table_path(flow.name)).commits():
        metadata_by_flow = (commit.metadata.get(BACKFILL) or {}).get("anew") or {
            commit.metadata.get("flow"): commit.metadata
        }
        if flow.flow in metadata_by_flow:
            return int(metadata_by_flow[flow.flow]["generation"])
    return None


def lacks_seed_commit(flow: Flow) -> bool:
    """Returns whether the table holds a full refresh's rows, and the flow's new generation has no commit yet."""
    active = (
        commit.metadata
        for commit, is_active in commit_history.commits_with_activity(DeltaLog(locations.table_path(flow.name)))
        if is_active
    )
    for metadata in active:
        if metadata.get("flow") == flow.flow:
            return False
        if flow.flow in ((metadata.get(BACKFILL) or {}).get("anew") or {}):
            return True
    return False
