"""The fast path joins a batch with the rows of the version that its commit names."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from include.engine.fast_path.lookup_tables import Dimensions
from include.engine.rows.micro_batch import Refusal
from include.lake import locations
from include.spec import Delta, Flow, Lookup

SALES = pa.table({"product": [1, 2, None]})


@pytest.fixture
def store(home: Path) -> Callable[[list[tuple]], None]:
    """Stores these products as the next version of their table."""

    def write(rows: list[tuple]) -> None:
        ids, titles = zip(*rows, strict=True)
        table = pa.table({"product": pa.array(ids, pa.int64()), "title": pa.array(titles, pa.string())})
        path = locations.table_path("silver.products")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_deltalake(str(path), table, mode="overwrite")

    return write


def dimensions() -> Dimensions:
    lookup = Lookup("silver.products", on="product", columns=("title",))
    return Dimensions(Flow(name="silver.sales", comment="x", source=Delta("bronze.sales"), lookups=(lookup,)))


def titles(joined: Dimensions, version: int) -> list[str | None]:
    rows, no_partner = joined.join(SALES, {"silver.products": version})
    found = rows.column("title").to_pylist()
    assert list(no_partner.values()) == [found.count(None)]
    return found


def test_each_batch_gets_the_rows_of_its_version_also_after_other_batches(store):
    store([(1, "ink"), (2, "pen")])
    store([(1, "red ink"), (2, "pen")])
    store([(1, "blue ink"), (None, "nothing")])
    joined = dimensions()
    assert titles(joined, 0) == ["ink", "pen", None]
    assert titles(joined, 1) == ["red ink", "pen", None]
    assert titles(joined, 2) == ["blue ink", None, None]
    assert titles(joined, 0) == ["ink", "pen", None]


def test_a_table_with_several_rows_of_a_key_is_left_to_spark_which_refuses_it(store):
    store([(1, "ink"), (2, "pen"), (2, "pencil")])
    refusal = dimensions().join(SALES, {"silver.products": 0})
    assert isinstance(refusal, Refusal) and refusal.reason == "silver.products holds several rows of a key"


def test_several_rows_without_a_key_are_no_matter(store):
    store([(1, "ink"), (None, "pen"), (None, "pencil")])
    assert titles(dimensions(), 0) == ["ink", None, None]
