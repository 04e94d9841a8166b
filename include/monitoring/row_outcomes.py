"""How many rows of each batch went where, and which rules they broke: from the stamps of a table's commits."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from include.readers.delta_log import Commit, Log
from include.readers.refreshes import RUN
from include.settings import settings
from include.spec import Table


@dataclass(frozen=True)
class Batch:
    """One batch, by its commit; at: seconds since 1970. Rows read are written, duplicates, quarantined or dropped.

    generation, batch: None of a refresh of a view, which has its run instead.
    broke: how many rows broke each rule there was, whatever became of them.
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

    @property
    def name(self) -> str:
        return f"{self.flow} in run '{self.run}'" if self.run else f"{self.flow} {self.generation}/{self.batch}"


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
    return list(islice(counted(table, Log(settings().table_path(table.name))), limit))


def counted(table: Table, log: Log) -> Iterator[Batch]:
    """The batches that counted their rows, newest first, each read from the log when it is asked for."""
    flows = {flow.flow for flow in table.flows}
    for commit in log.commits():
        is_batch = commit.metadata.get("flow") in flows or RUN in commit.metadata
        if is_batch and commit.metadata.get("rows"):
            yield _batch(table, commit)


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


def _batch(table: Table, commit: Commit) -> Batch:
    said, rows = commit.metadata, commit.metadata["rows"]
    # The table's own count, which is not the flow's: a row that is lost in between would show as a duplicate too many.
    written = rows["kept"] if commit.rows is None else commit.rows
    return Batch(
        version=commit.version,
        at=commit.timestamp,
        flow=said.get("flow", table.name),
        generation=said.get("generation"),
        batch=said.get("batch"),
        read=rows["read"],
        written=written,
        duplicates=rows["kept"] - written,
        quarantined=rows["quarantined"],
        dropped=rows["dropped"],
        broke=rows["broke"],
        run=said.get(RUN),
    )
