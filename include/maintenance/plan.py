"""Decides which policy steps a table needs, and why, from facts alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from include.delta.delta_log import LiveFile, Tombstone
from include.spec import Maintenance, Table

MERGE, OPTIMIZE, VACUUM, CLEAN_LOG = "merge", "optimize", "vacuum", "clean log"
MB = 2**20
DAY_SECONDS = 86_400

# With one half, a full bin of small files always exceeds this share, so it is not rewritten again.
GOOD_SHARE = 0.5
# Files of at least this share number at most 1.2 times the fewest possible files.
FULL_SHARE = 5 / 6
# A compacted tail is rewritten once more when its bin is full. That is 0.4 / FULL_SHARE, under half of all bytes.
TAIL_SHARE = 0.4
MANY_FILES = 100
# A file of the tail is left out if it exceeds this share of all smaller files: rewriting it gains too little.
DRAGGED_SHARE = 0.1
# After this many bins, an incomplete bin is accepted. Files of equal size can make whole bins impossible.
MANY_BINS = 4
# Larger bins often take the remaining files too. From four bins on they always do, as each takes a quarter more.
STRETCHES = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25)
# A stronger shrinking does not come from compaction, but from rows of another size.
MOST_SHRINKING = 0.25
# The assumption without a large file to compare with. Small appends shrink to about 0.7.
UNKNOWN_SHRINKING = 0.75

DEAD_SHARE = 0.2
DEAD_BYTES = 1024 * MB
MANY_DEAD = 1_000
MANY_LOG_FILES = 1_000


@dataclass(frozen=True)
class Facts:
    """What is known of a table before its window.

    dead: files in its directory that are not in the table, from `vacuum_guard.dead_files`.
    kept_since, held_by: VACUUM keeps files deleted since then (seconds since 1970), because of this consumer.
    removable_log_files: the number of log files that nobody needs.
    unread_versions: unmerged versions of the source of a table that is merged in windows; 0 for other tables.
    seconds_since_compaction: None for a table that was never compacted. Then the age of its small files counts.
    now_seconds: seconds since 1970.
    """

    live: Sequence[LiveFile]
    dead: Sequence[Tombstone]
    now_seconds: float
    kept_since: float | None = None
    held_by: str = ""
    removable_log_files: int = 0
    unread_versions: int = 0
    seconds_since_compaction: float | None = None


@dataclass(frozen=True)
class Step:
    """A step. why: a sentence, also for a step not worth it. numbers: its inputs. partitions: empty means all."""

    kind: str
    is_worth_it: bool
    why: str
    numbers: dict[str, int] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class MaintenancePlan:
    """All steps in their order, including those not worth doing."""

    steps: tuple[Step, ...]

    @property
    def is_worth_it(self) -> bool:
        return any(step.is_worth_it for step in self.steps)

    def step(self, kind: str) -> Step:
        return next(step for step in self.steps if step.kind == kind)


@dataclass(frozen=True)
class Selection:
    """A compaction: Delta rewrites the first `files` of the candidates, in bins of at most `bin_bytes`."""

    files: int
    bin_bytes: int
    outputs: int


@dataclass(frozen=True)
class PackedFile:
    """A file as the last one of a compaction. bin: the number of its bin, from 1 on.

    held: the bytes of that bin up to here. total: the bytes of all bins up to here.
    """

    size: int
    bin: int
    held: int
    total: int


def plan(facts: Facts, policy: Maintenance) -> MaintenancePlan:
    """Returns the steps of the next window: merge, optimize, vacuum, clean log."""
    return MaintenancePlan((_merge(facts), _optimize(facts, policy), _vacuum(facts, policy), _clean_log(facts)))


def _merge(facts: Facts) -> Step:
    unread = facts.unread_versions
    why = f"{_count(unread, 'version')} of its source {'waits' if unread == 1 else 'wait'} to be merged"
    return Step(MERGE, unread > 0, why, {"unread_versions": unread})


def _optimize(facts: Facts, policy: Maintenance) -> Step:
    target = int(policy.target_file_mb * MB)
    good = ceil(GOOD_SHARE * target)
    small = sorted((file for file in facts.live if file.bytes < good), key=lambda file: file.bytes)
    sizes = [file.bytes for file in small]
    shrinking = _shrinking(small, [file for file in facts.live if file.bytes >= good])
    max_bytes = int(policy.most_rewritten_mb * MB)
    selection = _select(sizes, target / shrinking, max_bytes, _has_waited(facts, small))
    numbers = {"files": len(facts.live), "small_files": len(small), "small_bytes": sum(sizes)}
    share = f"{len(small):,} of {_count(len(facts.live), 'file')} are smaller than {_size(good)}"
    if selection is None:
        return Step(OPTIMIZE, False, f"{share}: {_why_not(sizes, max_bytes)}", numbers)
    rewritten = sum(sizes[: selection.files])
    numbers |= {
        # OPTIMIZE takes every file below this size. No file lies between the last selected one and this size.
        "smaller_than_bytes": sizes[selection.files] if selection.files < len(sizes) else good,
        "target_bytes": selection.bin_bytes,
        "files_rewritten": selection.files,
        "files_written": selection.outputs,
        "bytes_rewritten": rewritten,
    }
    why = f"{share}; {selection.files:,} of them become {selection.outputs:,}, {_size(rewritten)} are rewritten"
    return Step(OPTIMIZE, True, why, numbers)


def _why_not(sizes: Sequence[int], max_bytes: int) -> str:
    if len(sizes) < 2:
        return "there is nothing to put together"
    if sum(sizes) > max_bytes:
        return f"no whole file comes of the {_size(max_bytes)} that most_rewritten_mb allows, raise it"
    return f"they wait for more, as {_size(sum(sizes))} make no whole file"


def _select(sizes: Sequence[int], full: float, max_bytes: int, has_waited: bool) -> Selection | None:
    """Selects the most files that fill whole bins. A tail that is long or old is included. Returns None for nothing.

    full: the bytes of small files that become one file of the target size.
    """

    def is_whole(end: PackedFile) -> bool:
        return end.held >= FULL_SHARE * full

    def is_tail(end: PackedFile) -> bool:
        return is_whole(end) or end.size <= DRAGGED_SHARE * (end.total - end.size)

    def is_late(end: PackedFile) -> bool:
        return end.bin > MANY_BINS

    selections = [_prefix(sizes, int(full * stretch), max_bytes, is_whole) for stretch in STRETCHES]
    has_grown = len(sizes) >= MANY_FILES and sum(sizes) <= TAIL_SHARE * full
    if has_waited or has_grown:
        selections.append(_prefix(sizes, int(full), max_bytes, is_tail))
    elif not any(selections):
        selections = [_prefix(sizes, int(full * stretch), max_bytes, is_late) for stretch in STRETCHES]
    # Among equals, max takes the first: whole bins, as small as possible.
    return max(filter(None, selections), key=lambda selection: selection.files, default=None)


def _prefix(
    sizes: Sequence[int], bin_bytes: int, max_bytes: int, may_end: Callable[[PackedFile], bool]
) -> Selection | None:
    """Returns the longest prefix, of at most `max_bytes`, that Delta can select and whose end is acceptable."""
    best = None
    for files, end in enumerate(pack_into_bins(sizes, bin_bytes), start=1):
        # Delta skips a bin with one file, and its size threshold cannot separate files of equal size.
        can_end = end.held > end.size and (files == len(sizes) or sizes[files] > end.size)
        if can_end and end.total <= max_bytes and may_end(end):
            best = Selection(files, bin_bytes, end.bin)
    return best


def pack_into_bins(sizes: Sequence[int], bin_bytes: int) -> Iterator[PackedFile]:
    """Yields, after each file, how Delta packs ascending file sizes into bins of at most `bin_bytes` bytes."""
    number, held, total = 1, 0, 0
    for size in sizes:
        if held and held + size > bin_bytes:
            number, held = number + 1, 0
        held, total = held + size, total + size
        yield PackedFile(size, number, held, total)


def _has_waited(facts: Facts, small: Sequence[LiveFile]) -> bool:
    seconds_waited = facts.seconds_since_compaction
    if seconds_waited is None:
        seconds_waited = facts.now_seconds - min((file.modified_at for file in small), default=facts.now_seconds)
    return seconds_waited >= DAY_SECONDS


def _shrinking(small: Sequence[LiveFile], good: Sequence[LiveFile]) -> float:
    """Returns the share of the small files' bytes that a large file needs, as it has fewer footers and dictionaries."""
    after, before = _bytes_per_row(good), _bytes_per_row(small)
    return min(1.0, max(MOST_SHRINKING, after / before)) if after and before else UNKNOWN_SHRINKING


def _bytes_per_row(files: Sequence[LiveFile]) -> float:
    counted = [file for file in files if file.rows]
    return sum(file.bytes for file in counted) / max(1, sum(file.rows or 0 for file in counted))


def _vacuum(facts: Facts, policy: Maintenance) -> Step:
    kept_since = float("inf") if facts.kept_since is None else facts.kept_since
    dead = sum(file.bytes or 0 for file in facts.dead)
    old = [file for file in facts.dead if file.deleted_at < kept_since]
    deletable, live = sum(file.bytes or 0 for file in old), sum(file.bytes for file in facts.live)
    least = GOOD_SHARE * policy.target_file_mb * MB
    is_worth_it = deletable > DEAD_BYTES or len(old) > MANY_DEAD or deletable > max(DEAD_SHARE * live, least)
    why = f"{_count(len(old), 'file')} with {_size(deletable)} can be deleted, beside {_size(live)} in the table"
    if not is_worth_it:
        why += f": worth it from {_size(min(DEAD_BYTES, max(DEAD_SHARE * live, least)))} or {MANY_DEAD:,} files on"
    if dead > deletable:
        why += f"; {_size(dead - deletable)} more are held back by {facts.held_by or 'a reader'}"
    numbers = {"dead_bytes": dead, "deletable_files": len(old), "deletable_bytes": deletable, "live_bytes": live}
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


# The number of target-size files that are clustered together. A larger cube skips more data and is rewritten more
# often: each file about half as many times as the cube has files.
CUBE_FILES = 4


def plan_stored_table(facts: Facts, table: Table) -> MaintenancePlan:
    """Returns `plan.plan` with an OPTIMIZE step for the table's layout."""
    default_plan = plan(facts, table.maintain)
    if table.cluster_by:
        layout_step = _cluster(facts, table.maintain)
    elif table.partition_by:
        layout_step = _compact_partitions(facts, table.maintain)
    else:
        return default_plan
    return MaintenancePlan(tuple(layout_step if step.kind == OPTIMIZE else step for step in default_plan.steps))


def _cluster(facts: Facts, maintenance: Maintenance) -> Step:
    """Compacts once the unclustered files fill a target file, are many, or have waited for a day."""
    target = int(maintenance.target_file_mb * MB)
    unclustered = [file for file in facts.live if not file.is_clustered]
    size = _total_bytes(unclustered)
    has_waited = any(facts.now_seconds - file.modified_at >= DAY_SECONDS for file in unclustered)
    numbers = {
        "files": len(facts.live),
        "small_files": len(unclustered),
        "small_bytes": size,
        "smaller_than_bytes": target,
        "target_bytes": target,
        "cube_bytes": CUBE_FILES * target,
    }
    share = f"{len(unclustered):,} of {len(facts.live):,} files with {size / MB:,.1f} MB are not clustered yet"
    if has_waited or len(unclustered) >= MANY_FILES or size >= target:
        return Step(OPTIMIZE, True, f"{share}: they are, with the last ones that were", numbers)
    return Step(OPTIMIZE, False, f"{share}: they wait for more, as they make no whole file", numbers)


def _compact_partitions(facts: Facts, maintenance: Maintenance) -> Step:
    """Decides for each partition by itself, largest file count first.

    Delta never compacts files of two partitions together.
    """
    selected: dict[str, Step] = {}
    max_bytes = maintenance.most_rewritten_mb * MB
    for directory, files in sorted(_by_partition(facts.live).items(), key=lambda pair: -len(pair[1])):
        # The age of the partition's own files counts, not the last compaction of another partition.
        partition_facts = replace(facts, live=files, seconds_since_compaction=None)
        step = plan(partition_facts, maintenance).step(OPTIMIZE)
        rewritten = step.numbers.get("bytes_rewritten", 0)
        if step.is_worth_it and rewritten <= max_bytes:
            selected[directory] = step
            max_bytes -= rewritten
    total = f"{len(_by_partition(facts.live)):,} partitions with {len(facts.live):,} files"
    if not selected:
        return Step(OPTIMIZE, False, f"{total}: in none of them there is enough to put together", {})
    steps = selected.values()
    numbers = {name: sum(step.numbers[name] for step in steps) for name in ("files_rewritten", "files_written")}
    numbers |= {
        "bytes_rewritten": sum(step.numbers["bytes_rewritten"] for step in steps),
        # All partitions share one setting. The largest value covers each of them.
        "smaller_than_bytes": max(step.numbers["smaller_than_bytes"] for step in steps),
        "target_bytes": max(step.numbers["target_bytes"] for step in steps),
    }
    why = f"{total}: in {len(selected):,} of them {numbers['files_rewritten']:,} become {numbers['files_written']:,}"
    return Step(OPTIMIZE, True, why, numbers, tuple(sorted(selected)))


def _by_partition(files: Sequence[LiveFile]) -> dict[str, list[LiveFile]]:
    """Groups files by their directory, such as `day=2026-03-01`."""
    groups: dict[str, list[LiveFile]] = {}
    for file in files:
        groups.setdefault(file.path.rpartition("/")[0], []).append(file)
    return groups


def _total_bytes(files: Sequence[LiveFile]) -> int:
    return sum(file.bytes for file in files)
