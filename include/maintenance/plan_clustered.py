"""What compaction is worth where columns lay out a table's files: clustered as a whole, or each partition by itself."""

from collections.abc import Sequence
from dataclasses import replace

from include.maintenance import plan as planning
from include.maintenance.plan import DAY_SECONDS, MANY_FILES, MB, OPTIMIZE, Facts, MaintenancePlan, Step
from include.readers.delta_log import LiveFile
from include.spec import Maintenance, Table

# Files of the target size that are clustered together before they are left alone. More of them skip better and are
# written more often: each file about half as many times.
CUBE_FILES = 4


def plan(facts: Facts, table: Table) -> MaintenancePlan:
    """As `ledger.plan`, with an OPTIMIZE that suits the table's layout."""
    usual = planning.plan(facts, table.maintain)
    if table.cluster_by:
        step = _cluster(facts, table.maintain)
    elif table.partition_by:
        step = _compact_partitions(facts, table.maintain)
    else:
        return usual
    return MaintenancePlan(tuple(step if one.kind == OPTIMIZE else one for one in usual.steps))


def _cluster(facts: Facts, wants: Maintenance) -> Step:
    """Worth it when what is not clustered yet fills a file, is many files, or has waited for a day."""
    target = int(wants.target_file_mb * MB)
    fresh = [file for file in facts.live if not file.is_clustered]
    size = _bytes(fresh)
    has_waited = any(facts.now - file.modified_at >= DAY_SECONDS for file in fresh)
    numbers = {
        "files": len(facts.live),
        "small_files": len(fresh),
        "small_bytes": size,
        "smaller_than_bytes": target,
        "target_bytes": target,
        "cube_bytes": CUBE_FILES * target,
    }
    share = f"{len(fresh):,} of {len(facts.live):,} files with {size / MB:,.1f} MB are not clustered yet"
    if has_waited or len(fresh) >= MANY_FILES or size >= target:
        return Step(OPTIMIZE, True, f"{share}: they are, with the last ones that were", numbers)
    return Step(OPTIMIZE, False, f"{share}: they wait for more, as they make no whole file", numbers)


def _compact_partitions(facts: Facts, wants: Maintenance) -> Step:
    """Delta never puts files of two partitions together, so each is judged by itself, the one with most files first."""
    chosen: dict[str, Step] = {}
    bound = wants.most_rewritten_mb * MB
    for directory, files in sorted(_by_partition(facts.live).items(), key=lambda pair: -len(pair[1])):
        # How long its own files have waited counts, not when another partition was compacted.
        alone = replace(facts, live=files, seconds_since_compaction=None)
        step = planning.plan(alone, wants).step(OPTIMIZE)
        rewritten = step.numbers.get("bytes_rewritten", 0)
        if step.is_worth_it and rewritten <= bound:
            chosen[directory] = step
            bound -= rewritten
    total = f"{len(_by_partition(facts.live)):,} partitions with {len(facts.live):,} files"
    if not chosen:
        return Step(OPTIMIZE, False, f"{total}: in none of them there is enough to put together", {})
    steps = chosen.values()
    numbers = {name: sum(one.numbers[name] for one in steps) for name in ("files_rewritten", "files_written")}
    numbers |= {
        "bytes_rewritten": sum(one.numbers["bytes_rewritten"] for one in steps),
        # One setting for all of them: the largest takes what each of them needs.
        "smaller_than_bytes": max(one.numbers["smaller_than_bytes"] for one in steps),
        "target_bytes": max(one.numbers["target_bytes"] for one in steps),
    }
    why = f"{total}: in {len(chosen):,} of them {numbers['files_rewritten']:,} become {numbers['files_written']:,}"
    return Step(OPTIMIZE, True, why, numbers, tuple(sorted(chosen)))


def _by_partition(files: Sequence[LiveFile]) -> dict[str, list[LiveFile]]:
    """Files by the directory they lie in, such as `day=2026-03-01`."""
    found: dict[str, list[LiveFile]] = {}
    for file in files:
        found.setdefault(file.path.rpartition("/")[0], []).append(file)
    return found


def _bytes(files: Sequence[LiveFile]) -> int:
    return sum(file.bytes for file in files)
