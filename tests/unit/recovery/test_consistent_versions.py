"""To which versions several tables can go back together, by logs that are written by hand."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from include.errors import UsageError
from include.readers.resume_position import skip_replacements
from include.readers.timeline import Timeline
from include.recovery import consistent_versions
from include.settings import settings
from include.spec import Delta, Table
from tests.support import lake
from tests.support.delta_log import commit, commit_info
from tests.support.lake import delta_offset as at


@dataclass
class House:
    """Tables whose versions are committed a second apart, in the order in which they are written."""

    names: dict[str, Table] = field(default_factory=dict)
    clock: int = 0

    def table(self, word: str, *sources: str, changes: bool = False) -> Table:
        layer, name = word, f"t{uuid.uuid4().hex[:10]}"
        reads = {one: Delta(self.names[one].name, changes=changes) for one in sources} or {"": Delta("bronze.none")}
        source = reads if len(reads) > 1 else next(iter(reads.values()))
        self.names[word] = Table(name=f"{layer}.{name}", comment="", source=source, schema="a INT")
        self.other(word)
        return self.names[word]

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def rows(self, word: str, count: int = 1, **stamp: object) -> int:
        """A commit that brings one file, of no flow where no stamp is given."""
        return lake.rows(self.names[word].name, self.tick(), count, **stamp)

    def batch(self, word: str, number: int, source_to: dict, generation: int = 1, branch: str | None = None) -> int:
        flow = f"{self.names[word].name}.{branch}" if branch else self.names[word].name
        return self.rows(word, flow=flow, generation=generation, batch=number, source_to=source_to)

    def other(self, word: str) -> int:
        """A commit that changes no row."""
        return lake.write(self.names[word].name, self.tick())

    def restore(self, word: str, to: int, **stamp: object) -> int:
        path = settings().table_path(self.names[word].name)
        version = len(list((path / "_delta_log").glob("*.json")))
        info = commit_info(self.tick(), operation="RESTORE", operationParameters={"version": str(to)})
        if stamp:
            info["commitInfo"]["userMetadata"] = '{"rewind": {"number": 1, "key": "k"}}'
        commit(path, version, info, {"remove": {"path": "x", "deletionTimestamp": 1, "dataChange": True}})
        return version

    def at(self, moment: float, *together: dict[str, int]) -> dict[str, int]:
        lines = {table.name: Timeline(table.name) for table in self.names.values()}
        tables = {table.name: table for table in self.names.values()}
        of = {table.name: word for word, table in self.names.items()}
        groups = [{self.names[word].name: version for word, version in one.items()} for one in together]
        found = consistent_versions.newest_consistent(moment, lines, tables, groups)
        self.why = {of[name]: why for name, why in found.why.items()}
        return {of[name]: version for name, version in found.versions.items()}


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def two(house) -> Callable[[], House]:
    """Silver and a gold that reads it."""
    house.table("silver")
    house.table("gold", "silver")
    return house


def test_a_reader_that_had_read_all_goes_back_with_its_source(two):
    two.rows("silver")
    two.batch("gold", 0, at(2))
    moment = two.clock
    two.rows("silver")
    two.batch("gold", 1, at(3))
    assert two.at(moment) == {"silver": 1, "gold": 1}
    assert two.at(two.clock) == {"silver": 2, "gold": 2}
    assert two.why == {}


def test_a_source_goes_back_to_what_its_reader_had_read(two):
    two.rows("silver")
    two.batch("gold", 0, at(2))
    two.rows("silver")
    two.rows("silver")
    moment = two.clock
    two.batch("gold", 1, at(4))
    assert two.at(moment) == {"silver": 1, "gold": 1}
    assert "had read no more of it" in two.why["silver"]


@pytest.mark.parametrize("end", [at(1, 0), at(2)], ids=["behind its last file", "before the next version"])
def test_the_end_of_a_version_is_written_in_two_ways(two, end):
    two.rows("silver")
    two.batch("gold", 0, end)
    assert two.at(two.clock) == {"silver": 1, "gold": 1}


def test_a_reader_that_stood_within_a_version_goes_back_to_where_it_did_not(two):
    two.rows("silver")
    two.batch("gold", 0, at(2))
    lake.rows(two.names["silver"].name, two.tick(), 1, 1)
    two.batch("gold", 1, at(2, 0))
    moment = two.clock
    two.batch("gold", 2, at(2, 1))
    assert two.at(moment) == {"silver": 1, "gold": 1}
    assert "within a version" in two.why["gold"]
    assert two.at(two.clock) == {"silver": 2, "gold": 3}


def test_a_reader_that_stood_within_its_first_snapshot_begins_anew(two):
    lake.rows(two.names["silver"].name, two.tick(), 1, 1)
    two.batch("gold", 0, at(1, 0, is_first=True))
    assert two.at(two.clock) == {"silver": 1, "gold": 0}


def test_a_reader_that_had_written_nothing_keeps_nobody_back(two):
    two.rows("silver")
    moment = two.clock
    two.batch("gold", 0, at(2))
    assert two.at(moment) == {"silver": 1, "gold": 0}


def test_a_compaction_of_the_source_is_passed_over(two):
    two.rows("silver")
    two.other("silver")
    two.batch("gold", 0, at(2))
    two.other("gold")
    assert two.at(two.clock) == {"silver": 2, "gold": 2}


def test_what_is_below_a_reader_goes_back_with_it(two):
    two.names["below"] = Table(
        name=f"gold.t{uuid.uuid4().hex[:10]}", comment="", source=Delta(two.names["gold"].name), schema="a INT"
    )
    two.other("below")
    two.rows("silver")
    two.batch("gold", 0, at(2))
    two.batch("below", 0, at(2))
    two.rows("silver")
    two.batch("gold", 1, at(3))
    # The lowest has read nothing of this, so all of it comes too late.
    assert two.at(two.clock) == {"silver": 1, "gold": 1, "below": 1}


def test_of_two_readers_the_slower_one_decides_and_the_other_goes_back_to_there(two):
    two.names["copy"] = Table(
        name=f"gold.t{uuid.uuid4().hex[:10]}", comment="", source=Delta(two.names["silver"].name), schema="a INT"
    )
    two.other("copy")
    two.rows("silver")
    two.batch("gold", 0, at(2))
    two.batch("copy", 0, at(2))
    two.rows("silver")
    two.rows("silver")
    two.batch("gold", 1, at(3))
    two.batch("gold", 2, at(4))
    assert two.at(two.clock) == {"silver": 1, "gold": 1, "copy": 1}
    assert "beyond that" in two.why["gold"]


def test_a_table_of_two_flows_goes_back_to_where_both_stood_at_an_end(house):
    one, other = house.table("silver"), house.table("bronze")
    joined = {"a": Delta(one.name), "b": Delta(other.name)}
    house.names["gold"] = Table(name=f"gold.t{uuid.uuid4().hex[:10]}", comment="", source=joined, schema="a INT")
    house.other("gold")
    house.rows("silver")
    house.batch("gold", 0, at(2), branch="a")
    house.rows("bronze")
    house.batch("gold", 0, at(2), branch="b")
    house.rows("bronze")
    house.rows("silver")
    house.batch("gold", 1, at(3), branch="a")
    assert house.at(house.clock) == {"silver": 2, "bronze": 1, "gold": 3}


def test_behind_a_rewind_the_next_one_may_go_further_back_and_not_into_what_was_undone(two):
    two.rows("silver")
    two.batch("gold", 0, at(2))
    first = two.clock
    two.rows("silver")
    two.batch("gold", 1, at(3))
    two.rows("silver")
    two.batch("gold", 2, at(4))
    undone = two.clock
    two.restore("silver", 2, rewind=True)
    two.restore("gold", 2, rewind=True)
    assert two.at(two.clock) == {"silver": 4, "gold": 4}
    two.rows("silver")
    two.batch("gold", 1, at(6), generation=2)
    assert two.at(first) == {"silver": 1, "gold": 1}
    # At that moment stood what was undone since: what counts of it is what came before.
    assert two.at(undone) == {"silver": 2, "gold": 2}
    assert two.at(two.clock) == {"silver": 5, "gold": 5}


def test_a_reader_that_has_read_what_was_undone_without_it_begins_anew(two):
    two.rows("silver")
    two.rows("silver")
    two.batch("gold", 0, at(3))
    two.restore("silver", 1)
    two.rows("silver")
    assert two.at(two.clock) == {"silver": 4, "gold": 0}


def test_a_stream_goes_on_behind_the_rewind_of_its_source_only_from_where_that_went_back_to(two):
    two.rows("silver")
    two.rows("silver")
    two.rows("silver")
    two.restore("silver", 1, rewind=True)
    source = Delta(two.names["silver"].name)
    assert skip_replacements(at(2), source) == at(5)
    assert skip_replacements(at(1, 0), source) == at(5)
    for elsewhere in (at(1), at(3), at(4)):
        assert skip_replacements(elsewhere, source) == elsewhere
    two.rows("silver")
    assert skip_replacements(at(2), source) == at(5)


def test_a_stream_never_passes_over_a_restore_that_is_no_rewind(two):
    two.rows("silver")
    two.rows("silver")
    two.restore("silver", 1)
    assert skip_replacements(at(2), Delta(two.names["silver"].name)) == at(2)


def test_the_parts_of_one_backfill_are_undone_together(two):
    two.rows("silver")
    two.batch("gold", 0, at(2))
    before = two.clock
    part = two.rows("silver", backfill={"number": 1, "key": "k"})
    moment = two.clock
    two.batch("gold", 1, at(3), generation=2)
    between = two.clock
    other = two.rows("gold", backfill={"number": 2, "key": "l"})
    assert two.at(between, {"silver": part, "gold": other}) == {"silver": 1, "gold": 1}
    assert two.at(moment, {"silver": part, "gold": other}) == two.at(before) == {"silver": 1, "gold": 1}
    assert two.at(two.clock, {"silver": part, "gold": other}) == {"silver": 2, "gold": 3}


def test_a_full_refresh_is_kept_with_the_place_where_its_flow_goes_on_or_undone(two):
    two.rows("silver")
    two.batch("gold", 0, at(2))
    stamp = {"flow": two.names["gold"].name, "generation": 2, "batch": 0, "source_to": at(2)}
    two.rows("gold", backfill={"number": 1, "key": "k", "anew": {stamp["flow"]: stamp}})
    between = two.clock
    lake.write(two.names["gold"].name, two.tick(), **stamp)
    assert two.at(between) == {"silver": 1, "gold": 1}
    assert two.at(two.clock) == {"silver": 1, "gold": 3}


def test_a_moment_before_the_log_is_refused(two):
    with pytest.raises(UsageError, match="cannot go back so far"):
        two.at(0)
