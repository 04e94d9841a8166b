"""Plans for facts that the tests make up, and the files of a thousand small appends under these plans."""

import random
from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from include.delta.delta_log import LiveFile, Tombstone
from include.maintenance.plan import (
    CLEAN_LOG,
    DAY_SECONDS,
    GOOD_SHARE,
    MB,
    MERGE,
    OPTIMIZE,
    VACUUM,
    Facts,
    MaintenancePlan,
    plan,
)
from include.spec import Maintenance

NOW = 1_800_000_000.0
DEFAULTS = Maintenance()
TARGET_BYTES = int(DEFAULTS.target_file_mb * MB)
GOOD_BYTES = GOOD_SHARE * TARGET_BYTES


def files(*sizes: float, rows_per_byte: float | None = None) -> list[LiveFile]:
    rows = [None if rows_per_byte is None else int(size * rows_per_byte) for size in sizes]
    return [LiveFile(f"{index}", int(size), rows[index], NOW) for index, size in enumerate(sizes)]


def plan_of(live: list[LiveFile], **facts) -> MaintenancePlan:
    return plan(
        Facts(live=live, **{"dead": [], "now_seconds": NOW, "seconds_since_compaction": 0.0, **facts}), DEFAULTS
    )


def pack_bins(live: list[LiveFile], smaller_than: int, bin_bytes: int) -> list[list[LiveFile]]:
    """Packs all files below a size into bins, in ascending order, as OPTIMIZE does. A bin of one file is left alone."""
    bins: list[list[LiveFile]] = []
    room = 0
    for file in sorted((file for file in live if file.bytes < smaller_than), key=lambda file: file.bytes):
        if not bins or file.bytes > room:
            bins.append([])
            room = bin_bytes
        bins[-1].append(file)
        room -= file.bytes
    return [bin_files for bin_files in bins if len(bin_files) > 1]


def execute(
    live: list[LiveFile], maintenance_plan: MaintenancePlan, left_of_small: float = 1.0
) -> tuple[list[LiveFile], int]:
    """Returns the files after Delta has executed the plan, and the bytes that Delta has read.

    left_of_small: the share of their bytes that files keep when they are compacted for the first time.
    """
    step = maintenance_plan.step(OPTIMIZE)
    if not step.is_worth_it:
        return live, 0
    bins = pack_bins(live, step.numbers["smaller_than_bytes"], step.numbers["target_bytes"])
    rewritten_paths = {file.path for bin_files in bins for file in bin_files}
    files_after = [file for file in live if file.path not in rewritten_paths]
    for bin_files in bins:
        size = sum(file.bytes * (1 if file.path.startswith("c") else left_of_small) for file in bin_files)
        rows = None if any(file.rows is None for file in bin_files) else sum(file.rows or 0 for file in bin_files)
        files_after.append(LiveFile(f"c{bin_files[0].path}", int(size), rows, NOW))
    rewritten = sum(file.bytes for bin_files in bins for file in bin_files)
    assert (len(rewritten_paths), len(bins)) == (step.numbers["files_rewritten"], step.numbers["files_written"])
    assert rewritten == step.numbers["bytes_rewritten"]
    return files_after, rewritten


@pytest.mark.parametrize("every", [50, 137, 1000])
@pytest.mark.parametrize("left_of_small", [1.0, 0.7])
@pytest.mark.parametrize("append_mb", [1, 4, 8])
@pytest.mark.parametrize("spread", [0, 0.5])
def test_a_thousand_small_appends_stay_near_the_fewest_files_and_are_written_little_more_than_once(
    every: int, left_of_small: float, append_mb: int, spread: float
):
    dice = random.Random(1)
    live: list[LiveFile] = []
    rewritten = ingested = 0
    for number in range(1, 1001):
        size = int(append_mb * MB * dice.uniform(1 - spread, 1 + spread))
        live.append(LiveFile(f"{number}", size, size // 100, NOW))
        ingested += size
        if number % every == 0:
            live, read = execute(live, plan_of(live), left_of_small)
            rewritten += read
    # The last small files wait for more. A day later they are compacted as they are.
    for waited_seconds in (0, DAY_SECONDS):
        while (result := execute(live, plan_of(live, seconds_since_compaction=waited_seconds), left_of_small))[1]:
            live, rewritten = result[0], rewritten + result[1]
    assert len(live) <= 1.2 * ceil(sum(file.bytes for file in live) / TARGET_BYTES)
    assert rewritten < 1.5 * ingested


def test_a_stream_of_tiny_appends_has_few_files_and_less_than_half_of_it_is_written_twice():
    live: list[LiveFile] = []
    rewritten = max_files = 0
    for number in range(1, 10_001):
        live.append(LiveFile(f"{number}", MB // 4, 1000, NOW))
        if number % 50 == 0:
            live, read = execute(live, plan_of(live))
            rewritten += read
            max_files = max(max_files, len(live))
    assert rewritten < 1.5 * 10_000 * MB / 4
    # A whole file takes at least 512 appends. Earlier compactions join 40% of these, and whole files come on top.
    assert max_files < 400


SIZES = st.lists(st.integers(1, int(1.5 * TARGET_BYTES)), max_size=300)
SMALL_SIZES = st.lists(st.integers(1, TARGET_BYTES // 20), max_size=600)


@given(SIZES | SMALL_SIZES, st.sampled_from([0.0, 2.0 * DAY_SECONDS]), st.sampled_from([None, 0.01, 1.0]))
def test_no_good_file_is_ever_rewritten(sizes: list[int], waited_seconds: float, rows_per_byte: float | None):
    live = files(*sizes, rows_per_byte=rows_per_byte)
    files_after, _ = execute(live, plan_of(live, seconds_since_compaction=waited_seconds))
    assert {file.path for file in live if file.bytes >= GOOD_BYTES} <= {file.path for file in files_after}


@given(SIZES | SMALL_SIZES, st.integers(1, 1_000), st.sampled_from([0.0, 2.0 * DAY_SECONDS]))
def test_no_more_is_rewritten_than_one_window_may(sizes: list[int], most_mb: int, waited_seconds: float):
    facts = Facts(files(*sizes), [], NOW, seconds_since_compaction=waited_seconds)
    _, rewritten = execute(list(facts.live), plan(facts, Maintenance(most_rewritten_mb=most_mb)))
    assert rewritten <= most_mb * MB


@given(SIZES | SMALL_SIZES, st.sampled_from([0.0, 2.0 * DAY_SECONDS]))
def test_what_was_just_compacted_needs_no_compaction(sizes: list[int], waited_seconds: float):
    # A threshold cannot separate files of equal size, so these may take another window.
    assume(len(set(sizes)) == len(sizes) and sum(sizes) < DEFAULTS.most_rewritten_mb * MB)
    live = files(*sizes)
    files_after, _ = execute(live, plan_of(live, seconds_since_compaction=waited_seconds))
    assert not plan_of(files_after).step(OPTIMIZE).is_worth_it


@given(SIZES | SMALL_SIZES, st.integers(1, 4), st.sampled_from([0.7, 1.0]))
def test_compaction_of_any_files_comes_to_an_end_and_writes_whole_files_once(sizes, copies, left_of_small):
    live = files(*sizes * copies, rows_per_byte=0.01)
    for _ in range(len(live) + 1):
        if not plan_of(live).step(OPTIMIZE).is_worth_it:
            return
        count_before = len(live)
        live, _ = execute(live, plan_of(live), left_of_small)
        assert len(live) < count_before
    raise AssertionError("it never ends")


def test_the_reason_tells_a_person_how_many_files_become_how_many():
    live = files(*[3 * MB + number for number in range(412)], *[120 * MB] * 18)
    step = plan_of(live).step(OPTIMIZE)
    assert step.why == "412 of 430 files are smaller than 64 MB; 412 of them become 7, 1.2 GB are rewritten"
    assert step.numbers["smaller_than_bytes"] == GOOD_BYTES


def test_files_that_make_no_whole_one_wait_for_more():
    step = plan_of(files(*[MB] * 50)).step(OPTIMIZE)
    assert not step.is_worth_it
    assert step.why == "50 of 50 files are smaller than 64 MB: they wait for more, as 50 MB make no whole file"


def test_files_that_waited_a_day_are_put_together_as_they_are():
    live = files(*[MB] * 50)
    assert plan_of(live, seconds_since_compaction=DAY_SECONDS).step(OPTIMIZE).numbers["files_written"] == 1


def test_in_a_table_that_was_never_compacted_the_age_of_its_small_files_counts():
    live = files(*[MB] * 50)
    assert not plan_of(live, seconds_since_compaction=None).is_worth_it
    assert plan_of(live, seconds_since_compaction=None, now_seconds=NOW + DAY_SECONDS).is_worth_it


def test_a_hundred_tiny_files_are_put_together_before_they_make_a_whole_one():
    assert not plan_of(files(*[MB // 10] * 99)).is_worth_it
    assert plan_of(files(*[MB // 10] * 100)).is_worth_it


def test_a_large_file_is_not_rewritten_for_the_sake_of_small_ones():
    live = files(*[MB // 10] * 100, 40 * MB)
    step = plan_of(live, seconds_since_compaction=DAY_SECONDS).step(OPTIMIZE)
    assert step.numbers["files_rewritten"] == 100
    assert step.numbers["smaller_than_bytes"] == 40 * MB


def test_bins_take_more_where_small_files_are_known_to_shrink():
    small = [LiveFile(f"{number}", MB + number, 5_000, NOW) for number in range(1_000)]
    large = [LiveFile("large", TARGET_BYTES, 1_000_000, NOW)]
    target_bytes = plan_of([*small, *large]).step(OPTIMIZE).numbers["target_bytes"]
    # Compaction shrinks 205 bytes a row to 134.
    assert TARGET_BYTES / 0.65 < target_bytes < 1.3 * TARGET_BYTES / 0.65


@pytest.mark.parametrize("count", [137, 138, 139, 145])
def test_files_of_one_size_are_compacted_although_no_threshold_can_part_them(count: int):
    files_after, _ = execute(live := files(*[20 * MB] * count), plan_of(live))
    assert len(files_after) <= 1.2 * ceil(count * 20 * MB / TARGET_BYTES)


def test_files_of_one_size_beyond_what_a_window_may_rewrite_are_named():
    live = files(*[20 * MB] * 1_000)
    step = plan_of(live).step(OPTIMIZE)
    assert not step.is_worth_it
    assert step.why.endswith("no whole file comes of the 10.0 GB that most_rewritten_mb allows, raise it")


def dead(*sizes: float) -> list[Tombstone]:
    """Removed files: the first at second 100, the next at 101, and so on."""
    return [Tombstone(f"dead{index}", int(size), 100.0 + index) for index, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("live_mb", "dead_mb", "is_worth_it"), [(1_000, 190, False), (1_000, 210, True), (9_000, 1_030, True)]
)
def test_vacuum_is_worth_it_from_a_fifth_of_the_table_or_a_gigabyte_on(live_mb, dead_mb, is_worth_it):
    new_plan = plan_of(files(*[100 * MB] * (live_mb // 100)), dead=dead(dead_mb * MB))
    assert new_plan.step(VACUUM).is_worth_it == is_worth_it


def test_crumbs_are_vacuumed_only_once_there_are_many():
    few, many = (plan_of(files(1_000), dead=dead(*[10_000] * count)).step(VACUUM) for count in (1_000, 1_001))
    assert (few.is_worth_it, many.is_worth_it) == (False, True)


def test_files_that_are_held_back_do_not_make_vacuum_worth_it_and_their_holder_is_named():
    new_plan = plan_of(files(100 * MB), dead=dead(MB, 60 * MB, 60 * MB), kept_since=101.0, held_by="silver.x")
    step = new_plan.step(VACUUM)
    assert not step.is_worth_it
    assert step.why == (
        "1 file with 1 MB can be deleted, beside 100 MB in the table: worth it from 64 MB or 1,000 files on; "
        "120 MB more are held back by silver.x"
    )


def test_an_empty_table_needs_nothing_and_the_steps_come_in_their_order():
    new_plan = plan_of([])
    assert not new_plan.is_worth_it
    assert [step.kind for step in new_plan.steps] == [MERGE, OPTIMIZE, VACUUM, CLEAN_LOG]


def test_upserts_that_were_gathered_make_a_window_worth_it():
    step = plan_of([], unread_versions=1).step(MERGE)
    assert step.is_worth_it
    assert step.why == "1 version of its source waits to be merged"


@pytest.mark.parametrize(("removable", "is_worth_it"), [(999, False), (1_000, True)])
def test_the_log_is_cleaned_where_it_is_worth_it(removable: int, is_worth_it: bool):
    assert plan_of([], removable_log_files=removable).step(CLEAN_LOG).is_worth_it == is_worth_it
