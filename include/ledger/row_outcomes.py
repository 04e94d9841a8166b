"""Reads from a table's commits how many rows of each batch went where, which rules they broke and what changes did."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from include.delta.delta_log import Commit, DeltaLog
from include.flows.refreshes import METHOD, RUN
from include.lake import locations
from include.spec import Table

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


@dataclass(frozen=True)
class Batch:
    """One batch, from its commit. read = written + duplicates + quarantined + dropped.

    at: seconds since 1970. run: of a view's refresh, which has no generation and batch.
    broke: how many rows broke each rule, whatever became of them. outcomes: of changes, as
    `include.ledger.row_outcomes.of`. Those without an effect count as duplicates.
    """

    version: int
    at: float
    flow: str
    generation: int | None
    batch: int | None
    read: int
    written: int
    duplicates: int
    quarantined: int
    dropped: int
    broke: dict[str, int]
    run: str | None = None
    outcomes: dict[str, int] | None = None

    @property
    def name(self) -> str:
        return f"{self.flow} in run '{self.run}'" if self.run else f"{self.flow} {self.generation}/{self.batch}"


@dataclass(frozen=True)
class Rule:
    """A rule over several batches.

    otherwise: its current action, None if no longer declared. rows: the rows it checked.
    """

    name: str
    otherwise: str | None
    rows: int
    broke: int

    @property
    def pass_rate(self) -> float | None:
        """From 0 to 1; None without rows."""
        return 1 - self.broke / self.rows if self.rows else None


def batches(table: Table, limit: int) -> list[Batch]:
    """Returns the newest batches in the log, newest first. Raises Unreachable and FlowBroken."""
    log = DeltaLog(locations.table_path(table.name))
    return list(islice(filter(None, batches_of(table, log.commits())), limit))


def batches_of(table: Table, commits: Iterable[Commit]) -> Iterator[Batch | None]:
    """Yields the batches in the order of the commits, and None for one whose rows were not checked."""
    flows = {flow.flow for flow in table.flows}
    for commit in commits:
        if commit.metadata.get("flow") in flows or RUN in commit.metadata:
            yield _batch(table, commit) if commit.metadata.get("rows") else None


def rules(table: Table, row_batches: list[Batch]) -> list[Rule]:
    """Returns the declared rules, then those that are no longer declared."""
    declared = {rule.name: rule.otherwise for rule in table.rules}
    if table.watermark:
        declared |= {table.watermark.rule: table.watermark.late, table.watermark.ahead_rule: "warn"}
    names = dict.fromkeys([*declared, *(name for batch in row_batches for name in batch.broke)])
    return [_rule(name, declared.get(name), row_batches) for name in names]


def _rule(name: str, otherwise: str | None, row_batches: list[Batch]) -> Rule:
    checked = [batch for batch in row_batches if name in batch.broke]
    return Rule(name, otherwise, sum(batch.read for batch in checked), sum(batch.broke[name] for batch in checked))


def _batch(table: Table, commit: Commit) -> Batch:
    metadata = commit.metadata
    # An incremental refresh checks only the rows that it adds.
    rows = metadata.get(METHOD, {}).get("added") or metadata["rows"]
    # The count of Delta's commit, not of the flow: a lost row would show as an additional duplicate.
    written = rows["kept"] if commit.rows is None else commit.rows
    if outcomes := of(rows, commit.merged):
        written = sum(outcomes[name] for name in EFFECTIVE)
    return Batch(
        version=commit.version,
        at=commit.timestamp,
        flow=metadata.get("flow", table.name),
        generation=metadata.get("generation"),
        batch=metadata.get("batch"),
        read=rows["read"],
        written=written,
        duplicates=rows["kept"] - written,
        quarantined=rows["quarantined"],
        dropped=rows["dropped"],
        broke=rows["broke"],
        run=metadata.get(RUN),
        outcomes=outcomes,
    )
