"""Reads from the commit of a batch what its changes did to the rows of their keys."""

from typing import Any

# The outcomes of a change that is kept.
OUTCOMES = ("inserted", "updated", "deleted", "unchanged", "stale", "truncates", "tombstones")
# Those that are named only where there are some.
SELDOM = ("truncates", "tombstones")
# Those that change the table.
EFFECTIVE = ("inserted", "updated", "deleted", "truncates")


def of(tally: dict[str, Any] | None, merged: dict[str, int]) -> dict[str, int] | None:
    """Returns the number of changes by outcome; None for a batch that merges no changes or does not count them.

    tally: the `rows` of the commit's metadata. merged: as `include.delta.delta_log.Commit.merged`, for a batch that
    leaves this count to Delta.
    """
    changes = (tally or {}).get("changes")
    if changes is None:
        return None
    did = {name: merged.get(name, 0) if changes[name] is None else changes[name] for name in EFFECTIVE[:3]}
    unchanged = changes["keys"] - sum(did.values())
    # An earlier release counted tombstones as stale.
    others = {name: changes.get(name, 0) for name in OUTCOMES[4:]}
    return {**did, "unchanged": unchanged, **others}


def words(outcomes: dict[str, int]) -> list[str]:
    """Returns each outcome with its number; without truncates and tombstones where there are none."""
    return [f"{count:,} {name}" for name, count in outcomes.items() if count or name not in SELDOM]
