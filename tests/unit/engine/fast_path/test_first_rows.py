"""Of rows with the same identity and the same `first_by`, all other values decide which one is the first."""

import pyarrow as pa

from include.engine.fast_path import append
from include.engine.rows.micro_batch import Refusal
from include.spec import Append

WRITE = Append(unique=("id",), first_by=("offset",))


def in_order(**columns: list) -> list[dict]:
    rows = pa.table({"id": [1] * len(next(iter(columns.values()))), **columns})
    return append._in_order(rows, WRITE).select(list(columns)).to_pylist()


def test_the_declared_order_comes_before_all_other_values():
    rows = in_order(offset=[2, 1, 1, None], code=["a", "b", None, "z"])
    assert [(row["offset"], row["code"]) for row in rows] == [(None, "z"), (1, None), (1, "b"), (2, "a")]


def test_floating_point_values_have_sparks_order_and_come_last():
    nan = float("nan")
    values = [0.0, nan, None, 1.5, -0.0, float("-inf"), float("inf"), -1.5]
    ordered = [repr(row["ratio"]) for row in in_order(offset=[0] * len(values), ratio=values)]
    assert ordered == ["None", "-inf", "-1.5", "-0.0", "0.0", "1.5", "inf", "nan"]
    rows = in_order(offset=[0, 0], ratio=[1.0, 2.0], code=["b", "a"])
    assert [row["code"] for row in rows] == ["a", "b"]


def test_rows_that_differ_only_in_nested_values_are_left_to_spark():
    same = in_order(offset=[0, 0], tags=[["a"], ["a"]])
    assert len(same) == 2
    refusal = append._in_order(pa.table({"id": [1, 1], "offset": [0, 0], "tags": [["a"], ["b"]]}), WRITE)
    assert isinstance(refusal, Refusal) and "differ only in values" in refusal.reason
    assert len(in_order(offset=[0, 1], tags=[["a"], ["b"]])) == 2


def test_no_rows_have_an_order():
    assert (
        append._in_order(pa.table({"id": pa.array([], pa.int32()), "offset": pa.array([], pa.int64())}), WRITE).num_rows
        == 0
    )
