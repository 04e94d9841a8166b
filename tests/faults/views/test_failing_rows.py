"""Rows of a source that make a view's transform raise: the view stays as it was, and a sentence says what to do."""

from dataclasses import replace

import pytest

from include.control.jobs import all_kinds
from include.control.store.job_id import JobKind
from include.engine.rows import storable
from include.errors import FlowBroken
from include.spec import Delta, Expect, Flow, Replace, Table
from tests.support.flows import rows_of

READINGS = "id BIGINT, text STRING, n BIGINT"


@pytest.fixture
def readings(name, append):
    """Appends rows `(id, text, n)` in one commit."""

    def arrive(*rows: tuple[int, str, int]) -> None:
        append(f"silver.{name}", [dict(zip(("id", "text", "n"), row, strict=True)) for row in rows], READINGS)

    return arrive


def view(name: str, kind: str, transform, **options) -> Table:
    declared = {"schema": "id BIGINT, value BIGINT", "comment": "", "write": Replace(), "transform": transform}
    return Flow(name=f"gold.{name}_{kind}", source=Delta(f"silver.{name}"), **{**declared, **options})


def test_rows_that_make_a_transform_raise_are_named_by_version_expression_and_value_and_leave_the_view_as_it_was(
    engine, name, readings, refresh
):
    source = f"silver.{name}"
    cast = view(name, "cast", "SELECT id, CAST(text AS BIGINT) AS value FROM source")
    total = view(
        name, "total", "SELECT id % 2 AS id, sum(n) AS value FROM source GROUP BY 1", comment="sums that overflow"
    )
    readings((1, "1999", 7), (2, "2000", 2**62))
    refresh("monday", cast, total)
    before = {of.name: rows_of(of.name) for of in (cast, total)}
    readings((3, "x", 0), (4, "2001", 2**62))
    added, all_rows = f"{source}, new since version 0 and up to version 1", f"{source}, version 1"
    expected = [
        (cast, added, "[CAST_INVALID_INPUT] The value 'x' of the type", "`try_cast`", ", in CAST(text AS BIGINT): let"),
        (total, all_rows, "[ARITHMETIC_OVERFLOW]", "'try_add'", ""),
    ]
    for number, (of, read, reason, remedy, expression) in enumerate(expected):
        # The first one is incremental, the second one combines all groups.
        with pytest.raises(FlowBroken) as error:
            refresh(f"run {number}", of)
        sentence = str(error.value)
        begin = f"{of.name}: run 'run {number}' fails with rows of {read}, and the view is left as it was: {reason}"
        assert sentence.startswith(begin), sentence
        assert remedy in sentence and expression in sentence
        assert sentence.endswith("or keep them out of its sources by a rule, and begin another run")
        assert error.value.error == reason[1:].partition("]")[0]
        assert rows_of(of.name) == before[of.name]
        [job] = all_kinds.newest(engine, JobKind.REFRESH, of.name, 1)
        assert (job.who, job.failure, job.ended_at) == (f"run {number}", sentence, None)
    # The repaired transform is another definition: nothing of the failed runs is taken for done.
    repaired = replace(cast, transform=cast.transform.replace("CAST", "try_cast"))
    refresh("repaired", repaired)
    assert {row["id"]: row["value"] for row in rows_of(cast.name)} == {1: 1999, 2: 2000, 3: None, 4: 2001}


# By text of a row: the rule that it breaks, the column, and the columns of the view.
UNSTORABLE = {
    "late": (storable.TIMES, "at", "id BIGINT, at TIMESTAMP, part STRUCT<n: BIGINT>"),
    "none": (storable.NOT_NULL, "id", "id BIGINT NOT NULL, at TIMESTAMP, part STRUCT<n: BIGINT>"),
    "in a struct": (storable.NOT_NULL, "part", "id BIGINT, at TIMESTAMP, part STRUCT<n: BIGINT NOT NULL>"),
}
STORABLE = """
    SELECT IF(text = 'none', NULL, id) AS id,
        timestamp_seconds(IF(text = 'late', 253402300800, 0)) AS at,
        named_struct('n', IF(text = 'in a struct', NULL, n)) AS part
    FROM source
"""


@pytest.mark.parametrize("text", UNSTORABLE)
def test_a_row_that_no_table_may_store_fails_the_refresh_whether_all_rows_are_computed_or_new_ones(
    engine, name, readings, refresh, text
):
    source, (rule, column, columns) = f"silver.{name}", UNSTORABLE[text]
    added = view(name, "added", STORABLE, schema=columns)
    whole = view(name, "whole", f"{STORABLE} ORDER BY id LIMIT 10", schema=columns)
    readings((1, "good", 7))
    refresh("monday", added, whole)
    before = {of.name: rows_of(of.name) for of in (added, whole)}
    assert [row["part"] for row in before[added.name]] == [{"n": 7}]
    readings((2, text, 8))
    new, all_rows = f"{source}, new since version 0 and up to version 1", f"{source}, version 1"
    for of, versions in ((added, new), (whole, all_rows)):
        with pytest.raises(FlowBroken) as error:
            refresh(f"tuesday {of.name}", of)
        sentence = str(error.value)
        assert f"fails with rows of {versions}, and the view is left as it was: " in sentence
        assert f": [USER_RAISED_EXCEPTION] a row that it makes breaks: {rule}, in column '{column}'" in sentence
        assert ": let its transform bear such rows, or keep them out of its sources by a rule" in sentence
        assert rows_of(of.name) == before[of.name]
        [job] = all_kinds.newest(engine, JobKind.REFRESH, of.name, 1)
        assert (job.failure, job.ended_at) == (sentence, None)
        # A rule that drops the row keeps it out of the view.
        of_rule = replace(of, expect=(Expect("good", "at < '2000-01-01' AND id > 0 AND part.n > 0", otherwise="drop"),))
        refresh(f"wednesday {of.name}", of_rule)
        assert rows_of(of.name) == before[of.name]
