"""How many rows of each batch went where, and which rules they broke: from the stamps of a table's commits."""

from dataclasses import dataclass
from itertools import islice

from include.ledger.log import Commit, Log
from include.settings import settings
from include.spec import Table


@dataclass(frozen=True)
class Batch:
    """One batch, by its commit; at: seconds since 1970. Rows read are written, duplicates, quarantined or dropped.

    broke: how many rows broke each rule there was, whatever became of them.
    """

    version: int
    at: float
    flow: str
    generation: int
    batch: int
    read: int
    written: int
    duplicates: int
    quarantined: int
    dropped: int
    broke: dict[str, int]


@dataclass(frozen=True)
class Rule:
    """A rule over several batches. otherwise: today's; None where it is declared no more. rows: those it judged."""

    name: str
    otherwise: str | None
    rows: int
    broke: int

    @property
    def pass_rate(self) -> float | None:
        """From 0 to 1."""
        return 1 - self.broke / self.rows if self.rows else None


def batches(table: Table, limit: int) -> list[Batch]:
    """The newest ones whose commits are still in the log, newest first. Raises Unreachable and Broken."""
    log = Log(settings().table_path(table.name))
    flows = {flow.flow for flow in table.flows}
    own = (one for one in log.commits() if one.metadata.get("flow") in flows and one.metadata.get("rows"))
    return [_batch(commit) for commit in islice(own, limit)]


def rules(table: Table, found: list[Batch]) -> list[Rule]:
    """Those declared today first, then those that were."""
    declared = {rule.name: rule.otherwise for rule in table.expect}
    if table.watermark:
        declared[table.watermark.rule] = table.watermark.late
    names = dict.fromkeys([*declared, *(name for one in found for name in one.broke)])
    return [_rule(name, declared.get(name), found) for name in names]


def _rule(name: str, otherwise: str | None, found: list[Batch]) -> Rule:
    judged = [one for one in found if name in one.broke]
    return Rule(name, otherwise, sum(one.read for one in judged), sum(one.broke[name] for one in judged))


def _batch(commit: Commit) -> Batch:
    said, rows = commit.metadata, commit.metadata["rows"]
    # The table's own count, which is not the flow's: a row that is lost in between would show as a duplicate too many.
    written = rows["kept"] if commit.rows is None else commit.rows
    return Batch(
        version=commit.version,
        at=commit.timestamp,
        flow=said["flow"],
        generation=said["generation"],
        batch=said["batch"],
        read=rows["read"],
        written=written,
        duplicates=rows["kept"] - written,
        quarantined=rows["quarantined"],
        dropped=rows["dropped"],
        broke=rows["broke"],
    )
