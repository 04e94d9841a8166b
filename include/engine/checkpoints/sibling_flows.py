"""The other flows that write, or once wrote, the table of a flow."""

from contextlib import suppress
from typing import Any

from include.errors import Broken
from include.readers import checkpoint, offset_log
from include.settings import settings
from include.spec import Table


def require_unread(flow: Table, source: dict[str, Any]) -> None:
    """Raises Broken where another flow has read this source into the table already: its rows would come twice.

    Its name may have been another one, or it may have been the only flow.
    """
    homes = settings().checkpoints(flow.name).parent
    others = [flow.name, *sorted(home.name for home in homes.glob(f"{flow.name}.*"))]
    for other in others:
        if other != flow.flow and _overlap(_source(other), source):
            raise Broken(
                f"{flow.flow}: flow {other} has read {source} into {flow.name} already, so its rows would come twice: "
                f"give the branch its old name back ('' is that of the flow that bears the table's name)",
                "CHECKPOINT_OF_ANOTHER_DEFINITION",
            )


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether some row would come out of both."""
    if "topics" in one and "topics" in other:
        return not one["topics"].items().isdisjoint(other["topics"].items())
    return one == other


def _source(flow: str) -> dict[str, Any]:
    """What its newest checkpoint reads; empty where that does not say."""
    home = settings().checkpoints(flow)
    generation = checkpoint.newest_generation(home)
    with suppress(Broken, ValueError, KeyError):
        return dict(offset_log.owner(home / str(generation))["source"])
    return {}
