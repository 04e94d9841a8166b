"""A looked-up table and an aggregate have one row of each key; a second one is refused, and named."""

from dataclasses import replace

import pytest

from include.lake import locations
from include.spec import Append, Delta, Flow, Lookup, Upsert
from tests.support.flows import rows_of
from tests.support.twins import Source, Twin

both_paths = pytest.mark.parametrize("is_fast", [True, False], ids=["fast path", "spark"])


@both_paths
def test_a_row_that_looks_for_a_key_with_several_rows_is_quarantined_and_not_doubled(spark, name, tmp_path, is_fast):
    products = spark.createDataFrame(
        [(1, "ink"), (2, "pen"), (2, "pencil"), (None, "?"), (None, "!")], "id INT, title STRING"
    )
    products.write.format("delta").save(str(locations.table_path(f"silver.{name}_products")))
    table = Flow(
        name=f"silver.{name}",
        comment="sales",
        source=Delta(f"bronze.{name}"),
        schema="sale INT, id INT, title STRING",
        write=Append(),
        lookups=(Lookup(f"silver.{name}_products", on="id", columns=("title",)),),
    )
    source = Source(spark, f"bronze.{name}", "sale INT, id INT")
    frame = source.append([(1, 1), (2, None), (3, 7)])
    twin = Twin(spark, tmp_path / "checkpoint", table, is_fast)
    twin.write(frame, 0)
    twin.write(source.append([(4, 1), (5, 2)]), 1)
    assert sorted((row["sale"], row["title"]) for row in rows_of(table.name)) == [
        (1, "ink"),
        (2, None),
        (3, None),
        (4, "ink"),
    ]
    [quarantined] = rows_of(table.quarantine)
    assert f"silver.{name}_products holds several rows of the id 2, and a lookup" in quarantined["_failed_reason"]


@both_paths
@pytest.mark.parametrize(
    "write", [Upsert(("code",), sequence_by="seq"), Append(unique=("code",))], ids=["upsert", "unique"]
)
def test_a_key_that_its_partition_would_store_as_null_is_quarantined_and_not_repeated(
    spark, name, tmp_path, is_fast, write
):
    table = Flow(
        name=f"silver.{name}",
        comment="by code",
        source=Delta(f"bronze.{name}"),
        schema="code STRING, seq INT",
        write=write,
        partition_by=("code",),
    )
    source = Source(spark, f"bronze.{name}", "code STRING, seq INT")
    twin = Twin(spark, tmp_path / "checkpoint", table, is_fast)
    for batch in range(2):
        codes = ("", "__HIVE_DEFAULT_PARTITION__", "x")
        twin.write(source.append([(code, batch) for code in codes]), batch)
    stored = sorted(str(row["code"]) for row in rows_of(table.name))
    assert stored == ["x"]
    assert sorted(row["code"] for row in rows_of(table.quarantine)) == ["", "", *["__HIVE_DEFAULT_PARTITION__"] * 2]


@both_paths
def test_an_aggregate_whose_transform_makes_several_rows_of_a_key_stores_none(spark, name, tmp_path, is_fast):
    table = Flow(
        name=f"gold.{name}",
        comment="sums",
        source=Delta(f"bronze.{name}"),
        schema="id INT, n BIGINT",
        transform="SELECT id, count(*) AS n FROM source GROUP BY id, sale",
        write=Upsert(("id",)),
    )
    source = Source(spark, f"bronze.{name}", "sale INT, id INT")
    frame = source.append([(1, 1), (2, 7)])
    twin = Twin(spark, tmp_path / "checkpoint", table, is_fast)
    twin.write(frame, 0)
    frame = source.append([(3, 8), (4, 8)])
    with pytest.raises(Exception, match=f"the transform of gold.{name} makes several rows of the id 8"):
        twin.write(frame, 1)
    assert sorted((row["id"], row["n"]) for row in rows_of(table.name)) == [(1, 1), (7, 1)]
    twin.start(1)
    twin.context.table = replace(table, transform="SELECT id, count(*) AS n FROM source GROUP BY id")
    twin.write(frame, 1)
    assert sorted((row["id"], row["n"]) for row in rows_of(table.name)) == [(1, 1), (7, 1), (8, 2)]
