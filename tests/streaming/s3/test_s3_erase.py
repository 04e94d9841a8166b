"""A subject is erased from a lake on S3, where objects are replaced as a whole."""

import pytest

from include.catalog import Catalog
from include.delta.delta_log import DeltaLog
from include.lake import locations
from include.lake.paths import ObjectPath
from include.ledger import verify
from include.settings import settings
from include.spec import Delta, Expect, Flow, Kafka
from tests.conftest import S3_PORT
from tests.support.erasures import Erasure, contents, without
from tests.support.flows import only_in_full_runs
from tests.support.s3 import object_lake

SCHEMA = "person STRING, place BIGINT"


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch):
    with object_lake.running(S3_PORT):
        monkeypatch.setenv("SLUICE_LAKE", object_lake.new())
        settings.cache_clear()
        yield
        monkeypatch.undo()
        settings.cache_clear()


@only_in_full_runs
def test_no_object_of_a_lake_on_s3_holds_an_erased_subject(lake, spark, name, append, run_once):
    bronze = Flow(name=f"bronze.{name}", comment="x", source=Kafka("none"), schema=SCHEMA, subject="person")
    silver = Flow(
        name=f"silver.{name}",
        comment="x",
        source=Delta(bronze.name),
        schema=SCHEMA,
        expect=(Expect("is_even", "place % 2 = 0"),),
        subject="person",
    )
    subject = f"ada-{name}"
    for begin in (0, 10):
        people = (subject, "bob", subject, f"{subject}a", "eve")
        append(bronze.name, [{"person": person, "place": begin + place} for place, person in enumerate(people)], SCHEMA)
        run_once(silver)
    erasure = Erasure(spark, Catalog({table.name: table for table in (bronze, silver)}), subject)
    try:
        before = [contents(table) for table in (bronze, silver)]
        assert isinstance(locations.table_path(silver.name), ObjectPath)
        kinds = {"_delta_log" in place for place in erasure.hits() if place.startswith("lake/")}
        assert kinds == {True, False}
        done = erasure.complete()
        assert (done.state, erasure.hits()) == ("done", {})
        assert [contents(table) for table in (bronze, silver)] == [without(subject, each) for each in before]
        verify.verify(silver)
        # Each version of the log is still there, and readers go on.
        log = DeltaLog(locations.table_path(bronze.name))
        assert log.versions == list(range(log.newest + 1))
        append(bronze.name, [{"person": subject, "place": 20}, {"person": "bob", "place": 22}], SCHEMA)
        run_once(silver)
        places = [place for place in erasure.hits() if place.startswith("lake/")]
        assert places == [place for place in places if f"/bronze/{name}/" in place]
        verify.verify(silver)
    finally:
        erasure.forget()
