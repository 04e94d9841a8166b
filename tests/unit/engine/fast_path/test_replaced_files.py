"""Rows with the keys of a batch are found in stored files as Python compares them."""

from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest

from include.engine.fast_path import replaced_files
from include.engine.fast_path.known_keys import keys_of

VALUES = {
    "int": (pa.int32(), [1, 2, None, -5]),
    "text": (pa.string(), ["a", "", None, "é"]),
    "bytes": (pa.binary(), [b"\xff", b"", None, b"a"]),
    "time": (
        pa.timestamp("us", "UTC"),
        [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2026, 1, 2, tzinfo=UTC), None],
    ),
    "date": (pa.date32(), [date(1, 1, 1), date(2026, 1, 2), None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.01"), None]),
    "boolean": (pa.bool_(), [True, False, None]),
}


@pytest.mark.parametrize("first", VALUES)
@pytest.mark.parametrize("second", [None, "text", "date"])
def test_rows_with_one_of_the_keys_are_found_whatever_the_types_of_their_columns(first: str, second: str | None):
    columns = {"first": first} | ({"second": second} if second else {})
    kinds = [VALUES[kind] for kind in columns.values()]
    count = 24
    rows = pa.table(
        {
            name: pa.array([values[(number // (1 + 3 * place)) % len(values)] for number in range(count)], type_)
            for place, (name, (type_, values)) in enumerate(zip(columns, kinds, strict=True))
        }
    )
    keys = set(keys_of(rows, columns)[::5])
    expected = [key in keys for key in keys_of(rows, columns)]
    layout = SimpleNamespace(schema=rows.schema)
    assert replaced_files._has_key(rows, keys, tuple(columns), layout).to_pylist() == expected
    assert any(expected)
