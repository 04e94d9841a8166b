"""An erasure takes a subject out of every place, leaves every other row as it was, and is done only when that is so."""

import base64
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.control import suppression
from include.control.jobs import store
from include.control.jobs.store import StoredJob
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import suppressions
from include.engine.jobs import erase
from include.engine.jobs.erase import EraseJob
from include.engine.jobs.worker import Worker
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.erasure import certificate, requests, scan
from include.erasure.requests import Request
from include.errors import FlowFailed, UsageError
from include.lake import locations
from include.ledger import verify
from include.rules import Expect
from include.settings import settings
from include.spec import Delta, Flow, Kafka, Table, View
from tests.support.flows import only_in_full_runs, rows_of

SCHEMA = "person STRING, payload STRING, place BIGINT"


class Killed(BaseException):
    """Ends a job in the middle, as SIGKILL would."""


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
def job(spark: SparkSession, tables: Catalog, subject: str) -> Iterator["Erasure"]:
    engine = database.connect(settings().control_url)
    yield Erasure(spark, tables, subject)
    with database.transaction(engine) as connection:
        connection.execute(suppressions.delete())
    suppression.key_file().unlink(missing_ok=True)


class Erasure:
    """An erasure as `jobs/erase.py` does it."""

    def __init__(self, spark: SparkSession, tables: Catalog, subject: str) -> None:
        self.engine = database.connect(settings().control_url)
        self._spark, self.tables, self.request = spark, tables, Request((subject,))

    def plan(self) -> StoredJob:
        return requests.plan(self.engine, self.tables, self.request, "eve", "she asked for it")

    def work(self, number: int) -> None:
        renewer = LeaseRenewer(self.engine, Holder.here("erase", jvm_pid()), 60, lambda reason: os.abort())
        renewer.start()
        try:
            host = Host(self._spark, self.engine, renewer, "erase")
            worker = Worker(self.engine, renewer, host, self._spark, self.tables, lambda reason: os.abort())
            job = store.get(self.engine, StoredJob, number, requests.KIND)
            EraseJob(self.engine, job.id).work(worker)
        finally:
            renewer.stop()

    def approve(self, job: StoredJob) -> None:
        store.approve(self.engine, job, "bob")

    def stored(self, number: int) -> StoredJob:
        return store.get(self.engine, StoredJob, number, requests.KIND)

    def hits(self) -> Counter[str]:
        return scan.scan(self.request.needles, self.tables).hits


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


def contents(table: Table) -> dict[str, Counter[str]]:
    names = [name for name in (table.name, table.quarantine) if locations.is_stored(name)]
    return {name: Counter(json.dumps(row, default=str, sort_keys=True) for row in rows_of(name)) for name in names}


def without(subject: str, before: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    return {
        name: Counter({row: count for row, count in found.items() if json.loads(row)["person"] != subject})
        for name, found in before.items()
    }


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
