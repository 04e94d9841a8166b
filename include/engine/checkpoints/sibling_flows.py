"""The other flows that write, or once wrote, the table of a flow."""

from contextlib import suppress
from typing import Any

from include.checkpoints import checkpoint_files
from include.errors import FlowBroken
from include.lake.paths import names
from include.settings import settings
from include.spec import Table


def require_unread(flow: Table, source: dict[str, Any]) -> None:
    """Raises FlowBroken if another flow has read this source into the table: its rows would come twice.

    That flow may have had another name, or may have been the table's only flow.
    """
    of_table = (name for name in names(settings().all_checkpoints) if name.startswith(f"{flow.name}."))
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
    home = settings().checkpoints(flow)
    generation = checkpoint_files.newest_generation(home)
    with suppress(FlowBroken, ValueError, KeyError):
        return dict(checkpoint_files.owner(home / str(generation))["source"])
    return {}
