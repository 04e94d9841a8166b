"""Decides whether compaction is worth it for a clustered table, or for each partition of a partitioned one."""

from collections.abc import Sequence
from dataclasses import replace

from include.delta.delta_log import LiveFile
from include.maintenance import plan as planning
from include.maintenance.plan import DAY_SECONDS, MANY_FILES, MB, OPTIMIZE, Facts, MaintenancePlan, Step
from include.spec import Maintenance, Table

# The number of target-size files that are clustered together. A larger cube skips more data and is rewritten more
# often: each file about half as many times as the cube has files.
CUBE_FILES = 4


def plan(facts: Facts, table: Table) -> MaintenancePlan:
    """Returns `plan.plan` with an OPTIMIZE step for the table's layout."""
    default_plan = planning.plan(facts, table.maintain)
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
    size = _bytes(unclustered)
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
        step = planning.plan(partition_facts, maintenance).step(OPTIMIZE)
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


def _bytes(files: Sequence[LiveFile]) -> int:
    return sum(file.bytes for file in files)
