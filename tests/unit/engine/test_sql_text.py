"""Paths and names with any characters are written into SQL as they are."""

import uuid

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from include.engine import session, sql_text
from include.engine.tables import create_table, maintain
from include.lake import locations

ODD = 'it\'s a `lake` \\ of "Müller" 100%20 $HOME; --'


@pytest.fixture
def odd_lake(own_settings, tmp_path):
    own_settings(SLUICE_HOME=tmp_path / ODD)


@pytest.mark.usefixtures("odd_lake")
def test_a_lake_whose_path_has_quotes_is_registered_read_and_vacuumed(spark: SparkSession):
    table = f"silver.t{uuid.uuid4().hex[:12]}"
    path = locations.table_path(table)
    spark.createDataFrame([(1,)], "number INT").write.format("delta").save(str(path))
    session.register(spark, table)
    try:
        assert spark.table(table).count() == 1
        assert spark.sql(f"SELECT * FROM {sql_text.delta(path)}").count() == 1
        maintain.vacuum(spark, table, 3600, {})
        assert path.is_dir()
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_a_companion_in_a_path_with_quotes_is_altered_by_its_quoted_path(own_settings, tmp_path):
    # delta-rs reads no table whose path has a backslash or a percent sign.
    own_settings(SLUICE_HOME=tmp_path / "a `lake`")
    path = locations.table_path("quarantine.silver_t")
    path.mkdir(parents=True)
    number = pa.field("number", pa.int32(), nullable=False)
    write_deltalake(str(path), pa.table([pa.array([1], pa.int32())], schema=pa.schema([number])))
    statements: list[str] = []
    create_table._drop_not_null("quarantine.silver_t", statements.append)
    assert statements == [f"ALTER TABLE {sql_text.delta(path)} ALTER COLUMN `number` DROP NOT NULL"]
    assert "``lake``" in statements[0]


def test_a_literal_and_an_identifier_are_what_they_were(spark: SparkSession):
    [row] = spark.sql(f"SELECT {sql_text.literal(ODD)} AS {sql_text.identifier(ODD)}").collect()
    assert row.asDict() == {ODD: ODD}
