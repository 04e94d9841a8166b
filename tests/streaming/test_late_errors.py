"""An error after success changes nothing: whatever call of a batch fails after its work, on both paths."""

import random
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from include.rules import unique
from include.spec import Append, Flow, Kafka, Table, Watermark
from tests.support.flows import FULL
from tests.support.generated import COLUMNS, MERGE, MODES, RULES, SEED, Generator, table
from tests.support.late_errors import ERRORS, Place, late_errors, places_of
from tests.support.topic import Topic
from tests.support.twins import Source, TopicSource, Twin, differences

FLOWS = {
    "merge": lambda name: table(name, replace(MERGE, partial=True)),
    "history": lambda name: table(name, replace(MERGE, scd=2)),
    "append": lambda name: table(
        name,
        Append(unique=("id",), first_by=("seq",), watermark=Watermark("at", 5)),
        expect=(*RULES, unique("id", "seq")),
    ),
    "aggregate": MODES["aggregate"],
    # Records as they are. The fast path reads them itself.
    "topic": lambda name: Flow(name=f"bronze.{name}", comment="x", source=Kafka(name)),
}
IN_SHORT_RUNS = (("merge", True), ("topic", True))
CASES = [(flow, is_fast) for flow in FLOWS for is_fast in (True, False) if FULL or (flow, is_fast) in IN_SHORT_RUNS]
COMMITS = ("commit of", "save of", "execute of")


def source_of(table: Table, spark: SparkSession, servers: str) -> Source | TopicSource:
    if table.source.reads_topics:
        return TopicSource(spark, Topic(servers, *table.source_as(Kafka).names).create(2))
    return Source(spark, table.source.table, COLUMNS)


def chosen(places: list[Place], random_: random.Random) -> list[Place]:
    """The first, the last and one other of the places of each call. In short runs, those of the commits, those behind
    them, and a few others.
    """
    if FULL:
        by_call: dict[str, list[Place]] = {}
        for place in places:
            by_call.setdefault(place[0], []).append(place)
        kept = {place for same in by_call.values() for place in (same[0], random_.choice(same), same[-1])}
        return [place for place in places if place in kept]
    commits = [number for number, (call, _) in enumerate(places) if call.startswith(COMMITS)]
    after = [number + 1 for number in commits if number + 1 < len(places)]
    return [places[number] for number in sorted({*commits, *after, *random_.sample(range(len(places)), 3)})]


# An error can hit a destructor, and leaves open what a call has opened.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("flow", "is_fast"), CASES)
def test_a_batch_leaves_the_same_whichever_call_fails_after_its_work(spark, broker, name, tmp_path, flow, is_fast):
    print(f"seed {SEED}")
    generator, random_ = Generator(SEED), random.Random(SEED)
    declared = FLOWS[flow](name)
    source = source_of(declared, spark, broker)
    frame = source.append(generator.batch(0))
    twins = [
        Twin(spark, tmp_path / kind, replace(declared, name=f"{declared.name}_{kind}"), is_fast, source.end_of)
        for kind in ("clean", "faulty")
    ]
    clean, faulty = twins
    for twin in twins:
        twin.write(frame, 0)
    frame = source.append(generator.full_batch(1))
    clean.write(frame, 1)
    places = chosen(places_of(lambda: faulty.write(frame, 1)), random_)
    assert clean.newest.metadata["fast_path"] == is_fast
    raised = []
    for number, place in enumerate(places, 2):
        frame = source.append(generator.full_batch(number))
        clean.write(frame, number)
        with late_errors(place, ERRORS[number % len(ERRORS)]) as errors:
            faulty.write_until_done(frame, number)
        raised += [place[0]] if errors.is_raised else []
        assert not differences(clean.contents, faulty.contents), (SEED, place, errors.is_raised)
    print(f"{len(places)} places, an error at {len(raised)} of them")
    assert any(call.startswith(COMMITS) for call in raised), (raised, places)
