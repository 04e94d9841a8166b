"""Versions to which several tables can go back together. The tests write the Delta logs by hand."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from include.errors import UsageError
from include.flows.delta_source import skip_replacements
from include.flows.timeline import Timeline
from include.lake import locations
from include.recovery import rewind_plan
from include.spec import Delta, Flow, Table
from tests.support import lake
from tests.support.delta_log import commit, commit_info
from tests.support.lake import delta_offset as delta_offset


@dataclass
class Lakehouse:
    """Tables whose versions are committed a second apart, in the order in which they are written."""

    tables: dict[str, Table] = field(default_factory=dict)
    clock: int = 0

    def table(self, key: str, *sources: str, changes: bool = False) -> Table:
        layer, name = key, f"t{uuid.uuid4().hex[:10]}"
        deltas = {source_key: Delta(self.tables[source_key].name, changes=changes) for source_key in sources} or {
            "": Delta("bronze.none")
        }
        source = deltas if len(deltas) > 1 else next(iter(deltas.values()))
        self.tables[key] = Flow(name=f"{layer}.{name}", comment="", source=source, schema="a INT")
        self.commit_no_rows(key)
        return self.tables[key]

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def rows(self, key: str, count: int = 1, **metadata: object) -> int:
        """Commits one file, by no flow unless metadata is given."""
        return lake.rows(self.tables[key].name, self.tick(), count, **metadata)

    def batch(self, key: str, number: int, source_to: dict, generation: int = 1, branch: str | None = None) -> int:
        flow = f"{self.tables[key].name}.{branch}" if branch else self.tables[key].name
        return self.rows(key, flow=flow, generation=generation, batch=number, source_to=source_to)

    def commit_no_rows(self, key: str) -> int:
        """Commits a version that changes no row."""
        return lake.write(self.tables[key].name, self.tick())

    def restore(self, key: str, to: int, **metadata: object) -> int:
        path = locations.table_path(self.tables[key].name)
        version = lake.next_version(path)
        info = commit_info(self.tick(), operation="RESTORE", operationParameters={"version": str(to)})
        if metadata:
            info["commitInfo"]["userMetadata"] = '{"rewind": {"number": 1, "key": "k"}}'
        commit(path, version, info, {"remove": {"path": "x", "deletionTimestamp": 1, "dataChange": True}})
        return version

    def versions_at(self, moment: float, *linked_versions: dict[str, int]) -> dict[str, int]:
        timelines = {table.name: Timeline(table.name) for table in self.tables.values()}
        tables = {table.name: table for table in self.tables.values()}
        key_by_name = {table.name: key for key, table in self.tables.items()}
        groups = [{self.tables[key].name: version for key, version in versions.items()} for versions in linked_versions]
        result = rewind_plan.newest_consistent(moment, timelines, tables, groups)
        self.why = {key_by_name[name]: why for name, why in result.why.items()}
        return {key_by_name[name]: version for name, version in result.versions.items()}


@pytest.fixture
def house() -> Lakehouse:
    return Lakehouse()


@pytest.fixture
def two(house) -> Callable[[], Lakehouse]:
    """A silver table, and a gold table that reads it."""
    house.table("silver")
    house.table("gold", "silver")
    return house


def test_a_reader_that_had_read_all_goes_back_with_its_source(two):
    two.rows("silver")
    two.batch("gold", 0, delta_offset(2))
    moment = two.clock
    two.rows("silver")
    two.batch("gold", 1, delta_offset(3))
    assert two.versions_at(moment) == {"silver": 1, "gold": 1}
    assert two.versions_at(two.clock) == {"silver": 2, "gold": 2}
    assert two.why == {}


def test_a_source_goes_back_to_what_its_reader_had_read(two):
    two.rows("silver")
    two.batch("gold", 0, delta_offset(2))
    two.rows("silver")
    two.rows("silver")
    moment = two.clock
    two.batch("gold", 1, delta_offset(4))
    assert two.versions_at(moment) == {"silver": 1, "gold": 1}
    assert "had read no more of it" in two.why["silver"]


@pytest.mark.parametrize(
    "end", [delta_offset(1, 0), delta_offset(2)], ids=["behind its last file", "before the next version"]
)
def test_the_end_of_a_version_is_written_in_two_ways(two, end):
    two.rows("silver")
    two.batch("gold", 0, end)
    assert two.versions_at(two.clock) == {"silver": 1, "gold": 1}


def test_a_reader_that_stood_within_a_version_goes_back_to_where_it_did_not(two):
    two.rows("silver")
    two.batch("gold", 0, delta_offset(2))
    lake.rows(two.tables["silver"].name, two.tick(), 1, 1)
    two.batch("gold", 1, delta_offset(2, 0))
    moment = two.clock
    two.batch("gold", 2, delta_offset(2, 1))
    assert two.versions_at(moment) == {"silver": 1, "gold": 1}
    assert "within a version" in two.why["gold"]
    assert two.versions_at(two.clock) == {"silver": 2, "gold": 3}


def test_a_reader_that_stood_within_its_first_snapshot_begins_anew(two):
    lake.rows(two.tables["silver"].name, two.tick(), 1, 1)
    two.batch("gold", 0, delta_offset(1, 0, is_first=True))
    assert two.versions_at(two.clock) == {"silver": 1, "gold": 0}


def test_a_reader_that_had_written_nothing_keeps_nobody_back(two):
    two.rows("silver")
    moment = two.clock
    two.batch("gold", 0, delta_offset(2))
    assert two.versions_at(moment) == {"silver": 1, "gold": 0}


def test_a_compaction_of_the_source_is_passed_over(two):
    two.rows("silver")
    two.commit_no_rows("silver")
    two.batch("gold", 0, delta_offset(2))
    two.commit_no_rows("gold")
    assert two.versions_at(two.clock) == {"silver": 2, "gold": 2}


def test_what_is_below_a_reader_goes_back_with_it(two):
    two.tables["below"] = Flow(
        name=f"gold.t{uuid.uuid4().hex[:10]}", comment="", source=Delta(two.tables["gold"].name), schema="a INT"
    )
    two.commit_no_rows("below")
    two.rows("silver")
    two.batch("gold", 0, delta_offset(2))
    two.batch("below", 0, delta_offset(2))
    two.rows("silver")
    two.batch("gold", 1, delta_offset(3))
    # The lowest table has read nothing of the second batches, so all of these come too late.
    assert two.versions_at(two.clock) == {"silver": 1, "gold": 1, "below": 1}


def test_of_two_readers_the_slower_one_decides_and_the_other_goes_back_to_there(two):
    two.tables["copy"] = Flow(
        name=f"gold.t{uuid.uuid4().hex[:10]}", comment="", source=Delta(two.tables["silver"].name), schema="a INT"
    )
    two.commit_no_rows("copy")
    two.rows("silver")
    two.batch("gold", 0, delta_offset(2))
    two.batch("copy", 0, delta_offset(2))
    two.rows("silver")
    two.rows("silver")
    two.batch("gold", 1, delta_offset(3))
    two.batch("gold", 2, delta_offset(4))
    assert two.versions_at(two.clock) == {"silver": 1, "gold": 1, "copy": 1}
    assert "beyond that" in two.why["gold"]


def test_a_table_of_two_flows_goes_back_to_where_both_stood_at_an_end(house):
    silver, bronze = house.table("silver"), house.table("bronze")
    sources = {"a": Delta(silver.name), "b": Delta(bronze.name)}
    house.tables["gold"] = Table(name=f"gold.t{uuid.uuid4().hex[:10]}", comment="", source=sources, schema="a INT")
    house.commit_no_rows("gold")
    house.rows("silver")
    house.batch("gold", 0, delta_offset(2), branch="a")
    house.rows("bronze")
    house.batch("gold", 0, delta_offset(2), branch="b")
    house.rows("bronze")
    house.rows("silver")
    house.batch("gold", 1, delta_offset(3), branch="a")
    assert house.versions_at(house.clock) == {"silver": 2, "bronze": 1, "gold": 3}


def test_behind_a_rewind_the_next_one_may_go_further_back_and_not_into_what_was_undone(two):
    two.rows("silver")
    two.batch("gold", 0, delta_offset(2))
    first_moment = two.clock
    two.rows("silver")
    two.batch("gold", 1, delta_offset(3))
    two.rows("silver")
    two.batch("gold", 2, delta_offset(4))
    undone_moment = two.clock
    two.restore("silver", 2, rewind=True)
    two.restore("gold", 2, rewind=True)
    assert two.versions_at(two.clock) == {"silver": 4, "gold": 4}
    two.rows("silver")
    two.batch("gold", 1, delta_offset(6), generation=2)
    assert two.versions_at(first_moment) == {"silver": 1, "gold": 1}
    # A rewind has undone the newest versions of that moment, so only the versions before them count.
    assert two.versions_at(undone_moment) == {"silver": 2, "gold": 2}
    assert two.versions_at(two.clock) == {"silver": 5, "gold": 5}


def test_a_reader_that_has_read_what_was_undone_without_it_begins_anew(two):
    two.rows("silver")
    two.rows("silver")
    two.batch("gold", 0, delta_offset(3))
    two.restore("silver", 1)
    two.rows("silver")
    assert two.versions_at(two.clock) == {"silver": 4, "gold": 0}


def test_a_stream_goes_on_behind_the_rewind_of_its_source_only_from_where_that_went_back_to(two):
    two.rows("silver")
    two.rows("silver")
    two.rows("silver")
    two.restore("silver", 1, rewind=True)
    source = Delta(two.tables["silver"].name)
    assert skip_replacements(delta_offset(2), source) == delta_offset(5)
    assert skip_replacements(delta_offset(1, 0), source) == delta_offset(5)
    for offset in (delta_offset(1), delta_offset(3), delta_offset(4)):
        assert skip_replacements(offset, source) == offset
    two.rows("silver")
    assert skip_replacements(delta_offset(2), source) == delta_offset(5)


def test_a_stream_never_passes_over_a_restore_that_is_no_rewind(two):
    two.rows("silver")
    two.rows("silver")
    two.restore("silver", 1)
    assert skip_replacements(delta_offset(2), Delta(two.tables["silver"].name)) == delta_offset(2)


def test_the_parts_of_one_backfill_are_undone_together(two):
    two.rows("silver")
    two.batch("gold", 0, delta_offset(2))
    moment_before = two.clock
    silver_version = two.rows("silver", backfill={"number": 1, "key": "k"})
    moment = two.clock
    two.batch("gold", 1, delta_offset(3), generation=2)
    moment_between = two.clock
    gold_version = two.rows("gold", backfill={"number": 2, "key": "l"})
    assert two.versions_at(moment_between, {"silver": silver_version, "gold": gold_version}) == {"silver": 1, "gold": 1}
    assert (
        two.versions_at(moment, {"silver": silver_version, "gold": gold_version})
        == two.versions_at(moment_before)
        == {"silver": 1, "gold": 1}
    )
    assert two.versions_at(two.clock, {"silver": silver_version, "gold": gold_version}) == {"silver": 2, "gold": 3}


def test_a_full_refresh_is_kept_with_the_place_where_its_flow_goes_on_or_undone(two):
    two.rows("silver")
    two.batch("gold", 0, delta_offset(2))
    metadata = {"flow": two.tables["gold"].name, "generation": 2, "batch": 0, "source_to": delta_offset(2)}
    two.rows("gold", backfill={"number": 1, "key": "k", "anew": {metadata["flow"]: metadata}})
    moment_between = two.clock
    lake.write(two.tables["gold"].name, two.tick(), **metadata)
    assert two.versions_at(moment_between) == {"silver": 1, "gold": 1}
    assert two.versions_at(two.clock) == {"silver": 1, "gold": 3}


def test_a_moment_before_the_log_is_refused(two):
    with pytest.raises(UsageError, match="cannot go back so far"):
        two.versions_at(0)
