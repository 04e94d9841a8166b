"""Finds where a flow's next generation begins: where the flow's last commit to its table ended."""

from typing import Any

from include.delta import commit_history
from include.delta.delta_log import DeltaLog
from include.flows import sources
from include.flows.source import StartPosition
from include.lake import locations
from include.spec import Flow


def identity(table: Flow) -> dict[str, Any]:
    """Returns what must stay the same for a checkpoint to be usable: source, write mode, keys. Raises Unreachable."""
    return {"flow": table.flow, "source": sources.of(table).identity(), "write": table.write.identity}


def last_commit_metadata(table: Flow) -> dict[str, Any] | None:
    """Returns the userMetadata of the flow's newest active commit; None where the table has none."""
    active = (
        commit.metadata
        for commit, is_active in commit_history.commits_with_activity(DeltaLog(locations.table_path(table.name)))
        if is_active
    )
    return next((metadata for metadata in active if metadata.get("flow") == table.flow), None)


def after_last_commit(table: Flow, accepts_loss: bool) -> StartPosition:
    """Returns where the flow's last commit to its table ended.

    accepts_loss: continues behind what Kafka no longer holds. Raises FlowBroken for a changed source, and Unreachable.
    """
    return sources.of(table).start(last_commit_metadata(table), accepts_loss)
