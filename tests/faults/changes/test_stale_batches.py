"""A batch of changes that changes no row is taken back by a rewind like any other."""

from dataclasses import replace

from include.spec import Upsert
from tests.support.flows import rows_of
from tests.support.rewinds import Rewinds, moment_of

LATEST = Upsert(("id",), sequence_by="seq")


def changes(rows):
    rows = rows.selectExpr("split(CAST(value AS STRING), ',') AS part")
    return rows.selectExpr("CAST(part[0] AS INT) AS id", "part[1] AS place", "CAST(part[2] AS INT) AS seq")


def test_a_rewind_takes_a_table_back_though_the_last_batch_changed_no_row_of_it(chain, run_once, spark):
    bronze = chain.bronze
    schema = "id INT, place STRING, seq INT"
    latest = replace(chain.silver, schema=schema, transform=changes, write=LATEST, expect=())
    chain.topic.create().send("1,north,5")
    run_once(bronze, latest)
    moment = max(moment_of(table) for table in (bronze, latest))
    chain.topic.send("1,south,4")
    run_once(bronze, latest)
    assert [row["place"] for row in rows_of(latest.name)] == ["north"]
    Rewinds(spark, bronze, latest).run(bronze, moment)
    chain.topic.send("1,west,6")
    run_once(bronze, latest)
    assert [row["place"] for row in rows_of(latest.name)] == ["west"]
