"""A subject is erased beside live streams, by a job that is killed in each of its phases."""

import signal

from include.control.jobs import store
from include.erasure import certificate, scan
from include.lake import locations
from include.ledger import verify
from tests.support.erasures import Erasure
from tests.support.flows import has_rows, only_in_full_runs, rows_of
from tests.support.jobs.erase import MOMENTS
from tests.support.jobs.process import Job
from tests.support.people import OTHERS, People, record
from tests.support.producing import produce_repeatedly
from tests.support.waiting import wait_until

EVENTS_PER_TURN, TURN_SECONDS = 10, 0.5
# Of a try that erases from all tables.
MOST_SECONDS = 1_500


@only_in_full_runs
def test_a_subject_is_gone_and_nobody_else_although_the_job_dies_in_each_phase_and_its_records_keep_coming(
    name, topic, driver, spark, refresh, tmp_path, monkeypatch
):
    # As of the embedded broker, nobody erases from its log.
    monkeypatch.setattr(scan, "OF_OTHERS", (*scan.OF_OTHERS, "broker"))
    topic.create(2)
    people, subject = People(name, topic.name), f"ada-{name}"
    erasure = Erasure(spark, people.catalog, subject)
    people.fill_archives(subject)

    def send(turn: int) -> None:
        others = [OTHERS[(turn * 7 + place) % len(OTHERS)] for place in range(EVENTS_PER_TURN - 1)]
        numbers = range(turn * EVENTS_PER_TURN, (turn + 1) * EVENTS_PER_TURN)
        topic.send(*(record(person, number) for number, person in zip(numbers, [subject, *others], strict=True)))

    try:
        with driver(*people.flows) as running_driver:
            with produce_repeatedly(send, EVENTS_PER_TURN, TURN_SECONDS) as stats:
                wait_until(lambda: has_rows(people.changes) and has_rows_in(people.silver.quarantine, subject), 600)
                refresh("before", people.counts)
                assert subject in {row["person"] for row in rows_of(people.counts.name)}
                planned = erasure.plan()
                erasure.approve(planned)
                for moment in MOMENTS:
                    job = Job(tmp_path, "tests.support.jobs.erase", name, topic.name, str(planned.number), moment)
                    assert job.wait(MOST_SECONDS) == -signal.SIGKILL, f"{moment}: {job.log.read_text()}"
                    print(f"killed when {moment}")
                last = Job(tmp_path, "tests.support.jobs.erase", name, topic.name, str(planned.number))
                assert last.wait(MOST_SECONDS) == 0, last.log.read_text()
                done = erasure.stored(planned.number)
                assert (done.state, done.failure) == ("done", None)
                print(f"longest pauses in seconds: {done.outcome['pauses']}")
            assert stats.per_second() > 19
            messages = topic.messages()
            assert sum(subject.encode() in (message.value or b"") for message in messages) > 100
            expected = people.expected(messages, subject)
            counts = expected.pop("counts")
            wait_until(lambda: people.stored() == expected, 300)
            refresh("after", people.counts)
            assert {row["person"]: row["rows"] for row in rows_of(people.counts.name)} == counts
            for table in people.flows:
                verify.verify(table)
            assert running_driver.error is None
        # The records that came meanwhile have left no trace in younger objects.
        found = scan.scan(erasure.request.needles, people.catalog, erasure.engine)
        assert found.is_clean, found.lines()
        assert certificate.file_of(planned.number).exists()
        assert store.unfinished(erasure.engine, done.kind, done.table, done.who) == []
    finally:
        erasure.forget()


def has_rows_in(table: str, person: str) -> bool:
    return locations.is_stored(table) and any(row["person"] == person for row in rows_of(table))
