"""Generations that a full refresh has begun: each waits for a commit of its own, without which no flow starts."""

import shutil
from contextlib import suppress

from include.errors import Broken
from include.readers import active_commits, checkpoint, offset_log
from include.readers.batches import BACKFILL
from include.readers.delta_log import Log
from include.settings import settings
from include.spec import Table

# The one batch of a new generation that the twin has read.
SEED = 0


def forget(table: Table) -> None:
    """Take back those that an earlier try has begun and no commit stands for: their flows cannot start."""
    for flow in table.flows:
        home = settings().checkpoints(flow.flow)
        number = checkpoint.newest_generation(home)
        if number is None or number == _newest_told(flow):
            continue
        with suppress(Broken):
            if offset_log.owner(home / str(number)).get("after") == [number, SEED]:
                shutil.rmtree(home / f"{number}.new", ignore_errors=True)
                (home / str(number)).rename(home / f"{number}.new")


def _newest_told(flow: Table) -> int | None:
    """The newest generation of which a commit of the table tells; None without one."""
    for made in Log(settings().table_path(flow.name)).commits():
        stamps = (made.metadata.get(BACKFILL) or {}).get("anew") or {made.metadata.get("flow"): made.metadata}
        if flow.flow in stamps:
            return int(stamps[flow.flow]["generation"])
    return None


def awaits_its_seed(flow: Table) -> bool:
    """Whether its table holds what a full refresh made, and the flow has yet to be told where it goes on."""
    held = (made.metadata for made, stands in active_commits.commits(Log(settings().table_path(flow.name))) if stands)
    for said in held:
        if said.get("flow") == flow.flow:
            return False
        if flow.flow in ((said.get(BACKFILL) or {}).get("anew") or {}):
            return True
    return False
