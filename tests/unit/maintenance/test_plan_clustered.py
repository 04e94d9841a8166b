"""Compaction of clustered and of partitioned tables, and when it is worth it."""

from include.delta.delta_log import LiveFile
from include.engine.tables.maintain import _predicate
from include.maintenance import plan
from include.maintenance.plan import DAY_SECONDS, MB, OPTIMIZE, Facts, Step
from include.spec import Delta, Flow, Maintenance, Table

NOW = 1_800_000_000.0


def table(maintenance: Maintenance, **layout) -> Table:
    schema = "day DATE, key STRING"
    return Flow(name="silver.t", comment="", source=Delta("bronze.t"), schema=schema, maintain=maintenance, **layout)


def optimize(live: list[LiveFile], maintenance: Maintenance | None = None, **layout) -> Step:
    return plan.plan_stored_table(Facts(live, [], NOW), table(maintenance or Maintenance(), **layout)).step(OPTIMIZE)


def file(path: str, mb: float, is_clustered: bool = False, age: float = 0) -> LiveFile:
    return LiveFile(path, int(mb * MB), 100, NOW - age, is_clustered)


def optimize_clustered(*live: LiveFile) -> Step:
    return optimize(list(live), cluster_by=("key",))


def test_files_that_are_not_clustered_are_worth_it_when_they_fill_one():
    large = [file(f"c{number}", 128, is_clustered=True) for number in range(9)]
    assert not optimize_clustered(*large).is_worth_it
    assert not optimize_clustered(*large, file("a", 20)).is_worth_it
    step = optimize_clustered(*large, file("a", 100), file("b", 100))
    assert step.is_worth_it
    assert step.why == "2 of 11 files with 200.0 MB are not clustered yet: they are, with the last ones that were"
    assert step.numbers["cube_bytes"] == 4 * step.numbers["target_bytes"] == 4 * 128 * MB


def test_few_files_that_are_not_clustered_wait_for_a_day():
    assert not optimize_clustered(file("a", 1, age=DAY_SECONDS - 1)).is_worth_it
    assert optimize_clustered(file("a", 1, age=DAY_SECONDS)).is_worth_it
    assert not optimize_clustered(file("a", 1, is_clustered=True, age=2 * DAY_SECONDS)).is_worth_it


def optimize_partitioned(*live: LiveFile, maintenance: Maintenance | None = None) -> Step:
    return optimize(list(live), maintenance, partition_by=("day",))


def test_small_files_of_many_partitions_are_not_put_together():
    days = [file(f"day=2026-03-{day:02}/a", 30, age=9 * DAY_SECONDS) for day in range(1, 29)]
    assert not optimize_partitioned(*days).is_worth_it


def test_only_the_partitions_that_are_worth_it_are_compacted():
    old = [file(f"day=2026-03-01/{number}", 2, age=DAY_SECONDS) for number in range(12)]
    full = [file(f"day=2026-03-02/{number}", 10) for number in range(20)]
    new = [file(f"day=2026-03-03/{number}", 1) for number in range(5)]
    step = optimize_partitioned(*old, *full, *new)
    assert step.is_worth_it
    assert step.partitions == ("day=2026-03-01", "day=2026-03-02")
    assert step.numbers["files_rewritten"] < 12 + 20 + 1
    assert step.why.startswith("3 partitions with 37 files: in 2 of them ")


def test_no_more_partitions_are_compacted_than_one_window_may_rewrite():
    maintenance = Maintenance(most_rewritten_mb=6)
    days = [
        file(f"day=2026-03-0{day}/{number}", 0.2, age=DAY_SECONDS) for day in (1, 2, 3) for number in range(11 + day)
    ]
    step = optimize_partitioned(*days, maintenance=maintenance)
    assert step.numbers["bytes_rewritten"] <= 6 * MB
    assert step.partitions == ("day=2026-03-02", "day=2026-03-03")


def test_a_directory_says_which_rows_lie_in_it():
    assert _predicate("day=2026-03-01/key=it%27s a%2Fb") == "`day` = '2026-03-01' AND `key` = 'it\\'s a/b'"
    assert _predicate("day=__HIVE_DEFAULT_PARTITION__") == "`day` IS NULL"
