"""How far a job is while it works: `sluice jobs` and the log of its process show it."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from include import logs
from include.control.jobs import store
from include.control.jobs.store import StoredJob
from include.engine.jobs.worker import Worker
from include.errors import Unreachable
from include.monitoring import lag
from include.progress import counted, reported
from include.spec import Flow

IS_RUNNING = "RUNNING"


@contextmanager
def shown(worker: Worker, job: StoredJob, message: str, how_far: Callable[[], str] | None = None) -> Iterator[None]:
    """Shows every few seconds how far the block is. message: what it does.

    how_far: in words; by default, the tasks of the Spark jobs that this thread runs.
    """
    with _tasks(worker.spark) as tasks:

        def report() -> None:
            words = (how_far or tasks)()
            try:
                store.show(worker.engine, job, f"{message}: {words}" if words else message)
            except Unreachable as error:
                # The work goes on, and needs the database at its end.
                logs.warning(f"{job.id}: {error}")

        with reported(report):
            yield


@contextmanager
def _tasks(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """Yields what counts the tasks of the Spark jobs that this thread runs in the block."""
    context, tag = spark.sparkContext, f"sluice {uuid.uuid4()}"
    tracker = context.statusTracker()
    # The trackers of Python and Java know no tags.
    ids_for_tag = context._jsc.sc().statusTracker().getJobIdsForTag

    def words() -> str:
        jobs = [tracker.getJobInfo(id_) for id_ in ids_for_tag(tag)]
        ids = {stage for job in jobs if job and job.status == IS_RUNNING for stage in job.stageIds}
        stages = [stage for id_ in ids if (stage := tracker.getStageInfo(id_))]
        done, total = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
        return counted(done, total, "tasks are done") if total else ""

    context.addJobTag(tag)
    try:
        yield words
    finally:
        context.removeJobTag(tag)


def unread(flows: tuple[Flow, ...]) -> str:
    """What these flows have not read of their sources, in words."""
    lags = lag.measure(flows).values()
    return ", ".join(f"{each.words} left" if each.has_begun and not each.unknown else each.words for each in lags)
