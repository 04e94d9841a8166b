"""What a window is worth, on facts made by hand, and what a thousand small appends come to under these plans."""

import random
from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
from include.readers.delta_log import LiveFile, Tombstone
from include.spec import Maintenance

NOW = 1_800_000_000.0
WANTS = Maintenance()
TARGET = int(WANTS.target_file_mb * MB)
GOOD = GOOD_SHARE * TARGET


def files(*sizes: float, rows_per_byte: float | None = None) -> list[LiveFile]:
    rows = [None if rows_per_byte is None else int(size * rows_per_byte) for size in sizes]
    return [LiveFile(f"{place}", int(size), rows[place], NOW) for place, size in enumerate(sizes)]


def looked_at(live: list[LiveFile], **more) -> MaintenancePlan:
    return plan(Facts(live=live, **{"dead": [], "now": NOW, "seconds_since_compaction": 0.0, **more}), WANTS)


def deltas_bins(live: list[LiveFile], smaller_than: int, most: int) -> list[list[LiveFile]]:
    """As Delta's OPTIMIZE does it: all files below a size, ascending, into bins; those of one file are left alone."""
    packed: list[list[LiveFile]] = []
    room = 0
    for file in sorted((file for file in live if file.bytes < smaller_than), key=lambda file: file.bytes):
        if not packed or file.bytes > room:
            packed.append([])
            room = most
        packed[-1].append(file)
        room -= file.bytes
    return [one for one in packed if len(one) > 1]


def carried_out(live: list[LiveFile], made: MaintenancePlan, left_of_small: float = 1.0) -> tuple[list[LiveFile], int]:
    """The files after Delta did what the plan says, and the bytes it read for it.

    left_of_small: what of the bytes of files that were never compacted is left in a large one.
    """
    step = made.step(OPTIMIZE)
    if not step.is_worth_it:
        return live, 0
    gone = deltas_bins(live, step.numbers["smaller_than_bytes"], step.numbers["target_bytes"])
    taken = {file.path for one in gone for file in one}
    kept = [file for file in live if file.path not in taken]
    for one in gone:
        size = sum(file.bytes * (1 if file.path.startswith("c") else left_of_small) for file in one)
        rows = None if any(file.rows is None for file in one) else sum(file.rows or 0 for file in one)
        kept.append(LiveFile(f"c{one[0].path}", int(size), rows, NOW))
    rewritten = sum(file.bytes for one in gone for file in one)
    assert (len(taken), len(gone)) == (step.numbers["files_rewritten"], step.numbers["files_written"])
    assert rewritten == step.numbers["bytes_rewritten"]
    return kept, rewritten


@pytest.mark.parametrize("every", [50, 137, 1000])
@pytest.mark.parametrize("left_of_small", [1.0, 0.7])
@pytest.mark.parametrize("append_mb", [1, 4, 8])
@pytest.mark.parametrize("spread", [0, 0.5])
def test_a_thousand_small_appends_stay_near_the_fewest_files_and_are_written_little_more_than_once(
    every: int, left_of_small: float, append_mb: int, spread: float
):
    chance = random.Random(1)
    live: list[LiveFile] = []
    rewritten = ingested = 0
    for number in range(1, 1001):
        size = int(append_mb * MB * chance.uniform(1 - spread, 1 + spread))
        live.append(LiveFile(f"{number}", size, size // 100, NOW))
        ingested += size
        if number % every == 0:
            live, read = carried_out(live, looked_at(live), left_of_small)
            rewritten += read
    # The rest of a small stream waits for more; a day later it is put together as it is.
    for waited in (0, DAY_SECONDS):
        while (again := carried_out(live, looked_at(live, seconds_since_compaction=waited), left_of_small))[1]:
            live, rewritten = again[0], rewritten + again[1]
    assert len(live) <= 1.2 * ceil(sum(file.bytes for file in live) / TARGET)
    assert rewritten < 1.5 * ingested


def test_a_stream_of_tiny_appends_has_few_files_and_less_than_half_of_it_is_written_twice():
    live: list[LiveFile] = []
    rewritten = most = 0
    for number in range(1, 10_001):
        live.append(LiveFile(f"{number}", MB // 4, 1000, NOW))
        if number % 50 == 0:
            live, read = carried_out(live, looked_at(live))
            rewritten += read
            most = max(most, len(live))
    assert rewritten < 1.5 * 10_000 * MB / 4
    # Of 512 and more that make a whole file, 0.4 were put together before; the files that are done come on top.
    assert most < 400


SIZES = st.lists(st.integers(1, int(1.5 * TARGET)), max_size=300)
SMALL_SIZES = st.lists(st.integers(1, TARGET // 20), max_size=600)


@given(SIZES | SMALL_SIZES, st.sampled_from([0.0, 2.0 * DAY_SECONDS]), st.sampled_from([None, 0.01, 1.0]))
def test_no_good_file_is_ever_rewritten(sizes: list[int], waited: float, rows_per_byte: float | None):
    live = files(*sizes, rows_per_byte=rows_per_byte)
    after, _ = carried_out(live, looked_at(live, seconds_since_compaction=waited))
    assert {file.path for file in live if file.bytes >= GOOD} <= {file.path for file in after}


@given(SIZES | SMALL_SIZES, st.integers(1, 1_000), st.sampled_from([0.0, 2.0 * DAY_SECONDS]))
def test_no_more_is_rewritten_than_one_window_may(sizes: list[int], most_mb: int, waited: float):
    facts = Facts(files(*sizes), [], NOW, seconds_since_compaction=waited)
    _, rewritten = carried_out(list(facts.live), plan(facts, Maintenance(most_rewritten_mb=most_mb)))
    assert rewritten <= most_mb * MB


@given(SIZES | SMALL_SIZES, st.sampled_from([0.0, 2.0 * DAY_SECONDS]))
def test_what_was_just_compacted_needs_no_compaction(sizes: list[int], waited: float):
    # One threshold cannot part files of one size, so those may take another window.
    assume(len(set(sizes)) == len(sizes) and sum(sizes) < WANTS.most_rewritten_mb * MB)
    live = files(*sizes)
    after, _ = carried_out(live, looked_at(live, seconds_since_compaction=waited))
    assert not looked_at(after).step(OPTIMIZE).is_worth_it


@given(SIZES | SMALL_SIZES, st.integers(1, 4), st.sampled_from([0.7, 1.0]))
def test_compaction_of_any_files_comes_to_an_end_and_writes_whole_files_once(sizes, copies, left_of_small):
    live = files(*sizes * copies, rows_per_byte=0.01)
    for _ in range(len(live) + 1):
        if not looked_at(live).step(OPTIMIZE).is_worth_it:
            return
        before = len(live)
        live, _ = carried_out(live, looked_at(live), left_of_small)
        assert len(live) < before
    raise AssertionError("it never ends")


def test_the_reason_tells_a_person_how_many_files_become_how_many():
    live = files(*[3 * MB + number for number in range(412)], *[120 * MB] * 18)
    step = looked_at(live).step(OPTIMIZE)
    assert step.why == "412 of 430 files are smaller than 64 MB; 412 of them become 7, 1.2 GB are rewritten"
    assert step.numbers["smaller_than_bytes"] == GOOD


def test_files_that_make_no_whole_one_wait_for_more():
    step = looked_at(files(*[MB] * 50)).step(OPTIMIZE)
    assert not step.is_worth_it
    assert step.why == "50 of 50 files are smaller than 64 MB: they wait for more, as 50 MB make no whole file"


def test_files_that_waited_a_day_are_put_together_as_they_are():
    live = files(*[MB] * 50)
    assert looked_at(live, seconds_since_compaction=DAY_SECONDS).step(OPTIMIZE).numbers["files_written"] == 1


def test_in_a_table_that_was_never_compacted_the_age_of_its_small_files_counts():
    live = files(*[MB] * 50)
    assert not looked_at(live, seconds_since_compaction=None).is_worth_it
    assert looked_at(live, seconds_since_compaction=None, now=NOW + DAY_SECONDS).is_worth_it


def test_a_hundred_tiny_files_are_put_together_before_they_make_a_whole_one():
    assert not looked_at(files(*[MB // 10] * 99)).is_worth_it
    assert looked_at(files(*[MB // 10] * 100)).is_worth_it


def test_a_large_file_is_not_rewritten_for_the_sake_of_small_ones():
    live = files(*[MB // 10] * 100, 40 * MB)
    step = looked_at(live, seconds_since_compaction=DAY_SECONDS).step(OPTIMIZE)
    assert step.numbers["files_rewritten"] == 100
    assert step.numbers["smaller_than_bytes"] == 40 * MB


def test_bins_take_more_where_small_files_are_known_to_shrink():
    small = [LiveFile(f"{number}", MB + number, 5_000, NOW) for number in range(1_000)]
    large = [LiveFile("large", TARGET, 1_000_000, NOW)]
    most = looked_at([*small, *large]).step(OPTIMIZE).numbers["target_bytes"]
    # 205 bytes a row become 134.
    assert TARGET / 0.65 < most < 1.3 * TARGET / 0.65


@pytest.mark.parametrize("count", [137, 138, 139, 145])
def test_files_of_one_size_are_compacted_although_no_threshold_can_part_them(count: int):
    after, _ = carried_out(live := files(*[20 * MB] * count), looked_at(live))
    assert len(after) <= 1.2 * ceil(count * 20 * MB / TARGET)


def test_files_of_one_size_beyond_what_a_window_may_rewrite_are_named():
    live = files(*[20 * MB] * 1_000)
    step = looked_at(live).step(OPTIMIZE)
    assert not step.is_worth_it
    assert step.why.endswith("no whole file comes of the 10.0 GB that most_rewritten_mb allows, raise it")


def dead(*sizes: float) -> list[Tombstone]:
    """The first was removed at 100, the next at 101, and so on."""
    return [Tombstone(f"dead{place}", int(size), 100.0 + place) for place, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("live_mb", "dead_mb", "is_worth_it"), [(1_000, 190, False), (1_000, 210, True), (9_000, 1_030, True)]
)
def test_vacuum_is_worth_it_from_a_fifth_of_the_table_or_a_gigabyte_on(live_mb, dead_mb, is_worth_it):
    made = looked_at(files(*[100 * MB] * (live_mb // 100)), dead=dead(dead_mb * MB))
    assert made.step(VACUUM).is_worth_it == is_worth_it


def test_crumbs_are_vacuumed_only_once_there_are_many():
    few, many = (looked_at(files(1_000), dead=dead(*[10_000] * count)).step(VACUUM) for count in (1_000, 1_001))
    assert (few.is_worth_it, many.is_worth_it) == (False, True)


def test_files_that_are_held_back_do_not_make_vacuum_worth_it_and_their_holder_is_named():
    made = looked_at(files(100 * MB), dead=dead(MB, 60 * MB, 60 * MB), kept_since=101.0, held_by="silver.x")
    step = made.step(VACUUM)
    assert not step.is_worth_it
    assert step.why == (
        "1 file with 1 MB can be deleted, beside 100 MB in the table: worth it from 64 MB or 1,000 files on; "
        "120 MB more are held back by silver.x"
    )


def test_an_empty_table_needs_nothing_and_the_steps_come_in_their_order():
    made = looked_at([])
    assert not made.is_worth_it
    assert [step.kind for step in made.steps] == [MERGE, OPTIMIZE, VACUUM, CLEAN_LOG]


def test_upserts_that_were_gathered_make_a_window_worth_it():
    step = looked_at([], unread_versions=1).step(MERGE)
    assert step.is_worth_it
    assert step.why == "1 version of its source waits to be merged"


@pytest.mark.parametrize(("removable", "is_worth_it"), [(999, False), (1_000, True)])
def test_the_log_is_cleaned_where_it_is_worth_it(removable: int, is_worth_it: bool):
    assert looked_at([], removable_log_files=removable).step(CLEAN_LOG).is_worth_it == is_worth_it
