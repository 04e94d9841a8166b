"""An erasure takes a subject out of every place, leaves every other row as it was, and is done only when that is so."""

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.catalog import Catalog
from include.control import vacuum_holds
from include.control.flows import incidents
from include.delta.delta_log import DeltaLog
from include.engine.jobs import erase
from include.engine.jobs.erase import EraseJob
from include.engine.tables import erase_rows
from include.erasure import certificate, requests, scan
from include.errors import FlowFailed, UsageError
from include.lake import locations
from include.ledger import verify
from include.rules import Expect
from include.settings import settings
from include.spec import Delta, Flow, Kafka, Via, View
from tests.support.erasures import Erasure, contents, without
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.rewinds import Rewinds, moment_of
from tests.support.topic import Topic

SCHEMA = "person STRING, payload STRING, place BIGINT"
KINDS = ("a", "b/ü = 5%", None)


class Killed(BaseException):
    """Ends a job in the middle, as SIGKILL would."""


@pytest.fixture
def topic(broker: str, monkeypatch: pytest.MonkeyPatch) -> Topic:
    # As of the embedded broker, nobody erases from its log.
    monkeypatch.setattr(scan, "OF_OTHERS", (*scan.OF_OTHERS, "broker"))
    return Topic(broker)


@pytest.fixture
def subject(name: str) -> str:
    return f"ada-{name}@example.org"


@pytest.fixture
def tables(name: str) -> Catalog:
    bronze = Flow(name=f"bronze.{name}", comment="x", source=Kafka(topics="none"), schema=SCHEMA, subject="person")
    silver = Flow(
        name=f"silver.{name}",
        comment="x",
        source=Delta(bronze.name),
        schema=SCHEMA,
        expect=(Expect("small", "place < 100"),),
        subject="person",
    )
    gold = View(
        name=f"gold.{name}", comment="x", source=Delta(silver.name), schema="person STRING, rows BIGINT", transform=sums
    )
    return Catalog({table.name: table for table in (bronze, silver, gold)})


def sums(rows):
    from pyspark.sql import functions as F

    return rows.groupBy("person").agg(F.count("*").alias("rows"))


@pytest.fixture
def erasing(spark: SparkSession, subject: str) -> Iterator[Callable[..., Erasure]]:
    """`erasing(*tables)` erases the subject from a catalog of these tables."""
    yield lambda *tables: Erasure(spark, Catalog({table.name: table for table in tables}), subject)
    Erasure(spark, Catalog({}), subject).forget()


@pytest.fixture
def job(erasing: Callable[..., Erasure], tables: Catalog) -> Erasure:
    return erasing(*tables.tables.values())


def rows(subject: str, begin: int) -> list[dict]:
    payload = base64.b64encode(json.dumps({"from": subject}).encode()).decode()
    return [
        {"person": subject, "payload": payload, "place": begin},
        {"person": "bob", "payload": "x", "place": begin + 1},
        {"person": f"x{subject}", "payload": "y", "place": begin + 2},
        {"person": subject, "payload": payload, "place": begin + 1000},
        {"person": "carol", "payload": "z", "place": begin + 1001},
    ]


@pytest.fixture
def lake(spark: SparkSession, tables: Catalog, subject: str, append: Callable, run_once: Callable) -> None:
    """The subject is in two versions of each table, in a quarantine, a view and a log."""
    bronze, silver, gold = tables.tables.values()
    for begin in (0, 10):
        append(bronze.name, rows(subject, begin), SCHEMA)
        run_once(silver)
    log = settings().logs / f"{silver.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"INFO {subject} was here\nINFO nobody was here\n")


def test_an_erasure_leaves_nothing_of_its_subject_and_every_other_row(job, lake, tables, subject, append, run_once):
    bronze, silver, _ = tables.tables.values()
    before = [contents(table) for table in (bronze, silver)]
    kinds = {place.split("/")[1] if "_delta_log" not in place else "log" for place in job.hits()}
    assert {"lake", "log"} <= kinds
    planned = job.plan()
    with pytest.raises(UsageError, match="nobody has approved it"):
        job.work(planned.number)
    job.approve(planned)
    job.work(planned.number)
    done = job.stored(planned.number)
    assert (done.state, done.ended_at is not None) == ("done", True), done.failure
    assert job.hits() == {}
    assert [contents(table) for table in (bronze, silver)] == [without(subject, each) for each in before]
    assert {name: taken["rows"] for name, taken in done.outcome["tables"].items()} == {
        bronze.name: 4,
        silver.name: 2,
        silver.quarantine: 2,
    }
    verify.verify(silver)
    text = certificate.file_of(planned.number).read_text()
    assert subject not in text
    assert json.loads(text)["approved_by"] == "bob"
    assert not requests.file_of(planned.number).exists()
    # The stream goes on, and catches a late copy at the door.
    append(bronze.name, rows(subject, 20), SCHEMA)
    run_once(silver)
    assert {row["place"] for row in rows_of(silver.name)} == {1, 2, 11, 12, 21, 22}
    assert {row["place"] for row in rows_of(silver.quarantine)} == {1001, 1011, 1021}
    assert "2 rows of erased subjects were suppressed" in " ".join(verify.verify(silver).notes)


@pytest.mark.parametrize(
    "stage",
    [
        erase.ROWS,
        *(
            pytest.param(stage, marks=only_in_full_runs)
            for stage in (erase.SUPPRESS, erase.VIEWS, erase.FILES, erase.PROVE)
        ),
    ],
)
def test_an_erasure_that_dies_in_any_stage_is_completed_by_the_next_try(job, lake, tables, subject, monkeypatch, stage):
    bronze, silver, _ = tables.tables.values()
    before = [contents(table) for table in (bronze, silver)]
    planned = job.plan()
    job.approve(planned)
    method = {
        erase.SUPPRESS: "_suppress",
        erase.ROWS: "_take_rows",
        erase.VIEWS: "_refresh_views",
        erase.FILES: "_clean_files",
        erase.PROVE: "_prove",
    }[stage]
    done = getattr(EraseJob, method)

    def dies(self, *arguments):
        if stage != erase.PROVE:
            done(self, *arguments)
        raise Killed

    monkeypatch.setattr(EraseJob, method, dies)
    with pytest.raises(Killed):
        job.work(planned.number)
    monkeypatch.undo()
    job.work(planned.number)
    assert job.stored(planned.number).state == "done"
    assert job.hits() == {}
    assert [contents(table) for table in (bronze, silver)] == [without(subject, each) for each in before]
    verify.verify(silver)


def test_rows_are_found_through_the_row_of_another_table_also_by_the_try_after_one_that_died(
    name, subject, erasing, append, run_once, monkeypatch
):
    orders = Flow(
        name=f"silver.{name}_orders",
        comment="x",
        source=Delta(f"bronze.{name}"),
        schema="id BIGINT, person STRING",
        subject="person",
    )
    # The catalog has them first, as nothing that they read is below the orders.
    items = Flow(
        name=f"silver.{name}_items",
        comment="x",
        source=Delta(f"bronze.{name}_items"),
        schema="order BIGINT, item STRING",
        expect=(Expect("named", "item <> ''"),),
        subject=Via(orders.name, on={"order": "id"}),
    )
    append(orders.name, [{"id": 1000017, "person": subject}, {"id": 1000018, "person": "bob"}], orders.schema)
    of_items = f"bronze.{name}_items"
    sold = [(1000017, "a"), (1000018, "b"), (1000017, ""), (1000018, ""), (None, "c")]
    append(of_items, [{"order": order, "item": item} for order, item in sold], items.schema)
    run_once(items)
    job = erasing(items, orders)
    vacuum_holds.register(job.engine, "report", orders.name, 0, hours=1, requester="ann")
    planned = job.plan()
    job.approve(planned)
    take_out = erase_rows.take_out

    def dies_behind_the_orders(spark, table, *arguments):
        take_out(spark, table, *arguments)
        if table == orders.name:
            raise Killed

    monkeypatch.setattr(erase_rows, "take_out", dies_behind_the_orders)
    with pytest.raises(Killed):
        job.work(planned.number)
    monkeypatch.undo()
    job.work(planned.number)
    assert job.stored(planned.number).state == "done"
    assert [row["id"] for row in rows_of(orders.name)] == [1000018]
    assert {(row["order"], row["item"]) for row in rows_of(items.name)} == {(1000018, "b"), (None, "c")}
    assert [row["order"] for row in rows_of(items.quarantine)] == [1000018]
    assert not requests.file_of(planned.number).exists()
    assert incidents.open_of(job.engine, f"copies {orders.name}")
    vacuum_holds.unregister(job.engine, "report", orders.name, requester="ann")
    # A late copy of an item is caught at the door.
    append(of_items, [{"order": order, "item": "late"} for order in (1000017, 1000018)], items.schema)
    run_once(items)
    assert [row["order"] for row in rows_of(items.name) if row["item"] == "late"] == [1000018]
    verify.verify(items)


@only_in_full_runs
def test_a_place_that_nobody_here_may_clean_keeps_the_erasure_from_being_done(job, lake, subject):
    other = settings().home / f"{subject.partition('@')[0]}.bin"
    other.write_bytes(subject.encode())
    try:
        planned = job.plan()
        job.approve(planned)
        with pytest.raises(FlowFailed, match="it is not erased yet, as 1 places still hold a subject"):
            job.work(planned.number)
        assert not certificate.file_of(planned.number).exists()
    finally:
        other.unlink()
    job.work(planned.number)
    assert certificate.file_of(planned.number).exists()


@only_in_full_runs
def test_rows_are_taken_out_of_partitions_with_constraints_and_of_their_change_feed(
    spark, name, subject, erasing, run_once
):
    columns = "person STRING NOT NULL, place BIGINT, kind STRING"
    source = Flow(
        name=f"bronze.{name}",
        comment="x",
        source=Kafka(topics="none"),
        schema=f"{columns}, double BIGINT",
        partition_by=("kind",),
        subject="person",
    )
    reader = Flow(
        name=f"silver.{name}",
        comment="x",
        source=Delta(source.name, changes=True),
        schema="person STRING, place BIGINT, _change_type STRING",
        subject="person",
    )
    path = locations.table_path(source.name)
    table = DeltaTable.create(spark).location(str(path)).addColumns(StructType.fromDDL(columns)).partitionedBy("kind")
    table = table.addColumn("double", "BIGINT", generatedAlwaysAs="place * 2").property("delta.appendOnly", "false")
    for feature in ("delta.enableChangeDataFeed", "delta.enableInCommitTimestamps"):
        table = table.property(feature, "true")
    table.execute()
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT early CHECK (place < 1000)")
    for begin in (0, 10):
        rows = [(person, begin + place, kind) for place, person in enumerate((subject, "bob")) for kind in KINDS]
        spark.createDataFrame(rows, columns).coalesce(1).write.format("delta").mode("append").save(str(path))
    spark.sql(f"UPDATE delta.`{path}` SET place = place + 100 WHERE place >= 10")
    run_once(reader)
    job, before, read = erasing(source, reader), contents(source), contents(reader)
    assert any("/_change_data/" in place for place in job.hits())
    done = job.complete()
    assert job.hits() == {}
    assert (contents(source), contents(reader)) == (without(subject, before), without(subject, read))
    assert spark.read.format("delta").load(str(path)).filter("kind IS NULL AND double = 222").count() == 1
    assert done.outcome["tables"][source.name]["rows"] == len(KINDS) * 2
    # The table is as strict as before, and the reader of its changes goes on.
    with pytest.raises(Exception, match="DELTA_VIOLATE_CONSTRAINT"):
        spark.createDataFrame([("eve", 2000, "a")], columns).write.format("delta").mode("append").save(str(path))
    spark.createDataFrame([("eve", 7, "a")], columns).write.format("delta").mode("append").save(str(path))
    run_once(reader)
    assert [row["place"] for row in rows_of(reader.name) if row["person"] == "eve"] == [7]


def test_a_table_whose_partitions_have_the_names_of_subjects_is_refused_before_anything_is_done(
    spark, name, subject, erasing
):
    table = Flow(
        name=f"bronze.{name}",
        comment="x",
        source=Kafka("none"),
        schema=SCHEMA,
        partition_by=("person",),
        subject="person",
    )
    frame = spark.createDataFrame([(subject, "x", 1)], SCHEMA).write.format("delta").partitionBy("person")
    frame.save(str(locations.table_path(table.name)))
    job = erasing(table)
    with pytest.raises(FlowFailed, match="because its partitions are named after subjects"):
        job.complete()
    assert len(rows_of(table.name)) == 1


def test_a_late_copy_of_a_record_in_kafka_is_suppressed_and_the_certificate_says_how_long_the_topic_has_it(
    name, subject, topic, erasing, run_once
):
    bronze = Flow(
        name=f"bronze.{name}",
        comment="as it came",
        source=Kafka(topic.name),
        subject="get_json_object(CAST(value AS STRING), '$.user')",
    )
    record, other = json.dumps({"user": subject}), json.dumps({"user": "bob"})
    topic.create(2, retention_ms="7200000").send(record, other, other, record)
    run_once(bronze)
    job = erasing(bronze)
    certified = json.loads(certificate.file_of(job.complete().number).read_text())
    assert certified["tables"][bronze.name]["rows"] == 2
    assert certified["held_by_others"][f"topic {topic.name}"] == "for 2 hours after the record came"
    assert certified["held_by_others"][f"folder {settings().landing}"] == "until its owner deletes the files"
    topic.send(other, record, record, other)
    run_once(bronze)
    assert Counter(row["value"].decode() for row in rows_of(bronze.name)) == {other: 4}
    assert {*verify.verify(bronze).notes} >= {
        f"2 rows of {bronze.name} were erased",
        "2 rows of erased subjects were suppressed",
    }
    assert job.hits() == {}


def test_nothing_restores_what_was_erased(spark, job, lake, tables, subject, append, run_once):
    bronze, silver, _ = tables.tables.values()
    moment = moment_of(silver)
    versions = {table.name: DeltaLog(locations.table_path(table.name)).newest for table in (bronze, silver)}
    job.complete()
    append(bronze.name, rows(subject, 20)[1:2], SCHEMA)
    run_once(silver)
    rewinds = Rewinds(spark, *tables.tables.values())
    for table in (bronze, silver):
        erased = rf"{table.name}: version \d+ erased rows, and version {versions[table.name]} held them"
        with pytest.raises(UsageError, match=erased):
            rewinds.run(table, moment)
        before = contents(table)
        restored = DeltaTable.forPath(spark, str(locations.table_path(table.name)))
        with pytest.raises(Exception, match="Not all files from version"):
            restored.restoreToVersion(versions[table.name])
        assert contents(table) == before
    assert not [place for place in job.hits() if "/lake/" in place]
