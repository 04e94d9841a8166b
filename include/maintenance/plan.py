"""What a window is worth: which steps would do a table good, and why, from facts alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

from include.readers.delta_log import LiveFile, Tombstone
from include.spec import Maintenance

MERGE, OPTIMIZE, VACUUM, CLEAN_LOG = "merge", "optimize", "vacuum", "clean log"
MB = 2**20
DAY_SECONDS = 86_400

# Half: a bin that was closed because the next of these did not fit is over half full, so it is never taken again.
GOOD_SHARE = 0.5
# Of files that come out no smaller than this there are at most 1.2 times the fewest possible.
FULL_SHARE = 5 / 6
# What is put together before it fills a bin is written again with that bin: 0.4 / FULL_SHARE, under half of all bytes.
TAIL_SHARE = 0.4
MANY_FILES = 100
# A file of the tail that is larger than this share of all smaller ones would be rewritten for their sake.
DRAGGED_SHARE = 0.1
# Where whole bins cannot be had, as many files are of one size: so many, and what is written too early is little.
MANY_BINS = 4
# Larger bins often take in what would else be left over: from four on always, as each takes a quarter more.
STRETCHES = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25)
# Rows of another kind are larger or smaller than the ones before; shrinking by more than this is no packaging.
MOST_SHRINKING = 0.25
# Until there is a large file to compare with: between 1 and the 0.7 that small appends come down to.
UNKNOWN_SHRINKING = 0.75

DEAD_SHARE = 0.2
DEAD_BYTES = 1024 * MB
MANY_DEAD = 1_000
MANY_LOG_FILES = 1_000


@dataclass(frozen=True)
class Facts:
    """What is known of a table before its window.

    dead: files in its directory that are in the table no more, from `guard.dead_files`.
    kept_since, held_by: from the vacuum guard; of dead files, those from that moment on stay, because of whom.
    removable_log_files: how many files of the log nobody needs.
    unread_versions: of the source of a table that is merged in windows; 0 for every other.
    seconds_since_compaction: None where the table never was, and what counts is how old its small files are.
    now: seconds since 1970.
    """

    live: Sequence[LiveFile]
    dead: Sequence[Tombstone]
    now: float
    kept_since: float | None = None
    held_by: str = ""
    removable_log_files: int = 0
    unread_versions: int = 0
    seconds_since_compaction: float | None = None


@dataclass(frozen=True)
class Step:
    """why: a sentence for people, worth it or not. numbers: what it rests on. partitions: none for all."""

    kind: str
    is_worth_it: bool
    why: str
    numbers: dict[str, int] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class MaintenancePlan:
    """The steps in their order, the ones not worth it too."""

    steps: tuple[Step, ...]

    @property
    def is_worth_it(self) -> bool:
        return any(step.is_worth_it for step in self.steps)

    def step(self, kind: str) -> Step:
        return next(step for step in self.steps if step.kind == kind)


@dataclass(frozen=True)
class Selection:
    """A way to compact: Delta rewrites the first `files` of the candidates, in bins of at most `bin_bytes`."""

    files: int
    bin_bytes: int
    outputs: int


@dataclass(frozen=True)
class End:
    """A file as the last one to be rewritten. bin: the number of its bin, from 1 on.

    held, total: the bytes in that bin, and in all up to here.
    """

    size: int
    bin: int
    held: int
    total: int


def plan(facts: Facts, wants: Maintenance) -> MaintenancePlan:
    """What to do in the next window: merge, optimize, vacuum, clean the log."""
    return MaintenancePlan((_merge(facts), _optimize(facts, wants), _vacuum(facts, wants), _clean_log(facts)))


def _merge(facts: Facts) -> Step:
    unread = facts.unread_versions
    why = f"{_count(unread, 'version')} of its source {'waits' if unread == 1 else 'wait'} to be merged"
    return Step(MERGE, unread > 0, why, {"unread_versions": unread})


def _optimize(facts: Facts, wants: Maintenance) -> Step:
    target = int(wants.target_file_mb * MB)
    good = ceil(GOOD_SHARE * target)
    small = sorted((file for file in facts.live if file.bytes < good), key=lambda file: file.bytes)
    sizes = [file.bytes for file in small]
    shrinking = _shrinking(small, [file for file in facts.live if file.bytes >= good])
    bound = int(wants.most_rewritten_mb * MB)
    cut = _cut(sizes, target / shrinking, bound, _has_waited(facts, small))
    numbers = {"files": len(facts.live), "small_files": len(small), "small_bytes": sum(sizes)}
    share = f"{len(small):,} of {_count(len(facts.live), 'file')} are smaller than {_size(good)}"
    if cut is None:
        return Step(OPTIMIZE, False, f"{share}: {_why_not(sizes, bound)}", numbers)
    rewritten = sum(sizes[: cut.files])
    numbers |= {
        # Delta takes every file below this size, and there is none between the last one meant and this.
        "smaller_than_bytes": sizes[cut.files] if cut.files < len(sizes) else good,
        "target_bytes": cut.bin_bytes,
        "files_rewritten": cut.files,
        "files_written": cut.outputs,
        "bytes_rewritten": rewritten,
    }
    why = f"{share}; {cut.files:,} of them become {cut.outputs:,}, {_size(rewritten)} are rewritten"
    return Step(OPTIMIZE, True, why, numbers)


def _why_not(sizes: Sequence[int], bound: int) -> str:
    if len(sizes) < 2:
        return "there is nothing to put together"
    if sum(sizes) > bound:
        return f"no whole file comes of the {_size(bound)} that most_rewritten_mb allows, raise it"
    return f"they wait for more, as {_size(sum(sizes))} make no whole file"


def _cut(sizes: Sequence[int], full: float, bound: int, has_waited: bool) -> Selection | None:
    """The most files that fill whole bins, and the tail behind them where it has grown long or waited; else None.

    full: the bytes that go into a file of the target size.
    """

    def is_whole(end: End) -> bool:
        return end.held >= FULL_SHARE * full

    def is_tail(end: End) -> bool:
        return is_whole(end) or end.size <= DRAGGED_SHARE * (end.total - end.size)

    def is_late(end: End) -> bool:
        return end.bin > MANY_BINS

    cuts = [_prefix(sizes, int(full * stretch), bound, is_whole) for stretch in STRETCHES]
    has_grown = len(sizes) >= MANY_FILES and sum(sizes) <= TAIL_SHARE * full
    if has_waited or has_grown:
        cuts.append(_prefix(sizes, int(full), bound, is_tail))
    elif not any(cuts):
        cuts = [_prefix(sizes, int(full * stretch), bound, is_late) for stretch in STRETCHES]
    # Of equals the first: whole bins, and no larger than they have to be.
    return max(filter(None, cuts), key=lambda cut: cut.files, default=None)


def _prefix(sizes: Sequence[int], most: int, bound: int, may_end: Callable[[End], bool]) -> Selection | None:
    """The longest prefix that Delta can be told to take, of at most `bound` bytes, whose end will do."""
    best = None
    for files, end in enumerate(bins(sizes, most), start=1):
        # Delta leaves a bin of one file alone, and its threshold cannot part files of one size.
        can_end = end.held > end.size and (files == len(sizes) or sizes[files] > end.size)
        if can_end and end.total <= bound and may_end(end):
            best = Selection(files, most, end.bin)
    return best


def bins(sizes: Sequence[int], most: int) -> Iterator[End]:
    """How Delta packs sizes that ascend into bins of at most so many bytes, after each file."""
    number, held, total = 1, 0, 0
    for size in sizes:
        if held and held + size > most:
            number, held = number + 1, 0
        held, total = held + size, total + size
        yield End(size, number, held, total)


def _has_waited(facts: Facts, small: Sequence[LiveFile]) -> bool:
    waited = facts.seconds_since_compaction
    if waited is None:
        waited = facts.now - min((file.modified_at for file in small), default=facts.now)
    return waited >= DAY_SECONDS


def _shrinking(small: Sequence[LiveFile], good: Sequence[LiveFile]) -> float:
    """How much of the small files' bytes a large one needs, having fewer footers and dictionaries."""
    large, little = _bytes_per_row(good), _bytes_per_row(small)
    return min(1.0, max(MOST_SHRINKING, large / little)) if large and little else UNKNOWN_SHRINKING


def _bytes_per_row(files: Sequence[LiveFile]) -> float:
    counted = [file for file in files if file.rows]
    return sum(file.bytes for file in counted) / max(1, sum(file.rows or 0 for file in counted))


def _vacuum(facts: Facts, wants: Maintenance) -> Step:
    kept_since = float("inf") if facts.kept_since is None else facts.kept_since
    dead = sum(file.bytes or 0 for file in facts.dead)
    gone = [file for file in facts.dead if file.deleted_at < kept_since]
    deletable, live = sum(file.bytes or 0 for file in gone), sum(file.bytes for file in facts.live)
    least = GOOD_SHARE * wants.target_file_mb * MB
    is_worth_it = deletable > DEAD_BYTES or len(gone) > MANY_DEAD or deletable > max(DEAD_SHARE * live, least)
    why = f"{_count(len(gone), 'file')} with {_size(deletable)} can be deleted, beside {_size(live)} in the table"
    if not is_worth_it:
        why += f": worth it from {_size(min(DEAD_BYTES, max(DEAD_SHARE * live, least)))} or {MANY_DEAD:,} files on"
    if dead > deletable:
        why += f"; {_size(dead - deletable)} more are held back by {facts.held_by or 'a reader'}"
    numbers = {"dead_bytes": dead, "deletable_files": len(gone), "deletable_bytes": deletable, "live_bytes": live}
    return Step(VACUUM, is_worth_it, why, numbers)


def _clean_log(facts: Facts) -> Step:
    files = facts.removable_log_files
    is_worth_it = files >= MANY_LOG_FILES
    why = f"nobody needs {_count(files, 'file')} of the log" + (
        "" if is_worth_it else f": worth it from {MANY_LOG_FILES:,} on"
    )
    return Step(CLEAN_LOG, is_worth_it, why, {"removable_log_files": files})


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if number < 1024:
            return f"{number:,.0f} {unit}"
        number /= 1024
    return f"{number:,.1f} GB"
