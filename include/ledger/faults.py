"""What is wrong with a table or its checkpoints, each named for what it is."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from include.errors import Broken
from include.readers import active_commits, batches, checkpoint, offset_log
from include.readers.batches import BatchHistory, BatchRecord, Generation, Other

# Of a checkpoint that keeps more than Spark's hundred, the newest files are opened.
OPENED = 200
RESTORE = "restore it from its backup, or begin a new generation where the table ends (action reset checkpoint)"


@dataclass(frozen=True)
class Fault:
    """One thing that somebody did, or that happened, to a table or a checkpoint.

    kind: restored, overwritten, vacuumed, foreign, log cleaned, log with a gap, missing, doubled, and of a checkpoint:
    lost, of another flow, damaged, with a gap.
    """

    kind: str
    sentence: str


def of_table(account: BatchHistory, entries: Iterable[BatchRecord | Other]) -> list[Fault]:
    """By all of its commits. entries: those of the account."""
    found = list(entries)
    name, log = account.table.name, account.log
    faults = [
        Fault("log with a gap", f"{name}: its log lacks versions {one}: restore them from a backup")
        for one in [spans(set(range(log.versions[0], log.newest + 1)) - set(log.versions))]
        if one
    ]
    if log.versions[0] > 0:
        faults.append(Fault("log cleaned", f"{name}: its log begins with version {log.versions[0]}"))
    faults += [fault for one in found if isinstance(one, Other) for fault in _of_other(account, one, found)]
    for state, says in (
        (batches.MISSING, "Spark is done with them, and the table's log has no commit of theirs"),
        (batches.DOUBLED, "the table holds a second commit of them, so their rows are in it twice"),
    ):
        faults += [
            Fault(state, f"{name}: batches {said}: {says}") for said in _said(one for one in found if _is(one, state))
        ]
    return faults


def of_checkpoints(account: BatchHistory, entries: Iterable[BatchRecord | Other]) -> list[Fault]:
    """Of every generation that still has a directory, and of those that should. entries: those of the account."""
    faults = []
    held = [one for one in entries if isinstance(one, BatchRecord) and one.version is not None]
    for flow in dict.fromkeys([*(flow.flow for flow in account.table.flows), *(one.flow for one in held)]):
        generations = account.generations(flow)
        newest = max((one.generation for one in held if one.flow == flow), default=0)
        if newest > max(generations, default=0):
            faults.append(
                Fault(
                    "checkpoint lost",
                    f"{flow}: the table holds batches of generation {newest}, whose checkpoint is gone: {RESTORE}",
                )
            )
        for number, generation in generations.items():
            faults += _of_generation(flow, number, generation)
            beyond = [one for one in held if (one.flow, one.generation, one.state) == (flow, number, batches.HISTORY)]
            faults += [
                Fault(
                    "checkpoint lost",
                    f"batches {said}: the table holds them, and their checkpoint does not know them: {RESTORE}",
                )
                for said in _said(beyond)
            ]
    return faults


def _of_other(account: BatchHistory, one: Other, found: list[BatchRecord | Other]) -> Iterator[Fault]:
    name, what = account.table.name, f"version {one.version} ({one.operation})"
    if one.is_undone or one.kind not in ("foreign", "declaration"):
        return
    commit = account.log.commit(one.version)
    gone = _said(entry for entry in found if _is(entry, batches.UNDONE) and (entry.version or 0) < one.version)
    without = f"; without batches {', '.join(gone)}" if gone else ""
    if one.operation == "RESTORE":
        to = commit.parameters.get("version") or commit.parameters.get("timestamp")
        yield Fault("restored", f"{name}: {what} put it back to {to}{without}")
    elif active_commits.overwrites(commit):
        yield Fault("overwritten", f"{name}: {what} replaced all it held{without}")
    elif one.operation.startswith("VACUUM"):
        yield Fault("vacuumed", f"{name}: {what} is by nobody Sluice knows: versions before it may be unreadable")
    elif one.kind == "foreign":
        yield Fault("foreign", f"{name}: {what} is by nobody Sluice knows")


def _of_generation(flow: str, number: int, generation: Generation) -> Iterator[Fault]:
    path = generation.path
    try:
        whose = offset_log.owner(path).get("flow")
        if whose != flow:
            yield Fault(
                "checkpoint of another flow", f"{flow}: its checkpoint {path} is that of {whose}: put its own back"
            )
    except Broken as error:
        yield Fault("checkpoint damaged", f"{flow}: {error}")
    if generation.planned or generation.committed:
        try:
            checkpoint.check_metadata(path / "metadata")
        except Broken as error:
            yield Fault("checkpoint damaged", f"{flow}: {error}")
    for kind, listed in (("offsets", generation.planned), ("commits", generation.committed)):
        # One that was seeded keeps its batch 0 until Spark purges it.
        holes = set(range(min(listed), max(listed))) - listed if listed else set()
        if holes:
            yield Fault("checkpoint with a gap", f"{flow}: {path / kind} lacks {spans(holes)}: {RESTORE}")
    newest, done = max(generation.planned, default=-1), generation.done
    if newest - done not in (0, 1):
        said = f"{flow}: {path} plans up to batch {newest} and is done up to {done}, files are missing: {RESTORE}"
        yield Fault("checkpoint with a gap", said)
    for listed, read in ((generation.planned, offset_log.batch), (generation.committed, offset_log.check_commit)):
        for batch in sorted(listed)[-OPENED:]:
            try:
                read(path, batch)
            except Broken as error:
                yield Fault("checkpoint damaged", f"{flow}: {error}")


def _is(entry: BatchRecord | Other, state: str) -> bool:
    return isinstance(entry, BatchRecord) and entry.state == state


def _said(found: Iterable[BatchRecord | Other]) -> list[str]:
    """Batches in words, by flow and generation."""
    entries = sorted(((one.flow, one.generation), one.batch) for one in found if isinstance(one, BatchRecord))
    groups = groupby(entries, key=lambda one: one[0])
    return [f"{flow} {number}/{spans({batch for _, batch in group})}" for (flow, number), group in groups]


def spans(numbers: set[int]) -> str:
    """Such as `3 to 7, 9`."""
    said = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        first, *rest = [number for _, number in group]
        said.append(f"{first} to {rest[-1]}" if rest else f"{first}")
    return ", ".join(said)
