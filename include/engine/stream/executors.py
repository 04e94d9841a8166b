"""The executors of a driver on a cluster: it has as many as it is to have, by the interface of dynamic allocation."""

import time
from collections import deque
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include import logs
from include.control.flows import sizing
from include.engine.session import jvm_of
from include.errors import Unreachable
from include.settings import settings


def conf_of(driver: str, size: int | None) -> dict[str, str]:
    """Returns the Spark settings with which a driver begins; none for one whose executors are not declared.

    size: as last decided. A standalone master takes the most, and gives all of them until the driver asks for fewer.
    """
    bounds = settings().executors.get(driver)
    if bounds is None:
        return {}
    least, most = bounds
    cores = _cores(SparkConf().get("spark.executor.cores"))
    return {
        # Without it, an executor of a standalone cluster takes all cores of its worker.
        "spark.executor.cores": str(cores),
        "spark.cores.max": str(most * cores),
        "spark.executor.instances": str(size or least),
    }


def _cores(setting: str | None) -> int:
    return int(setting or 1)


# Reports of batches are journaled some seconds after their end.
CHANGES_KEPT = 100


class Executors:
    """running: the executors that the driver has now; None while nobody scales it."""

    def __init__(self, spark: SparkSession, engine: Engine, driver: str) -> None:
        self._spark = spark
        self._engine = engine
        self._driver = driver
        self._requested: int | None = None
        self._has_cluster = True
        self._reported: int | None = None
        # Told to end. Spark still counts them for a moment.
        self._leaving: set[str] = set()
        self._problem: str | None = None
        self.running: int | None = None
        self._changes: deque[tuple[float, int | None]] = deque(maxlen=CHANGES_KEPT)

    def running_at(self, seconds: float) -> int | None:
        """The executors that the driver had at this time since 1970; None while nobody scaled it."""
        return next((running for since, running in reversed(self._changes) if since <= seconds), None)

    def turn(self, size: int | None) -> None:
        """Called every second: asks the cluster for this many executors, and ends idle ones beyond.

        size: None leaves it to Spark's settings. A busy executor stays until it is idle.
        """
        try:
            self._conform(size)
            if not self._changes or self._changes[-1][1] != self.running:
                self._changes.append((time.time(), self.running))
        except Py4JError as error:
            # The flows go on with the executors that there are.
            if str(error) != self._problem:
                self._problem = str(error)
                logs.warning(f"driver '{self._driver}' cannot change its executors: {error}")

    def _conform(self, size: int | None) -> None:
        if size is not None and size != self._requested:
            self._request(size)
        if size is None or not self._has_cluster:
            self.running = None
            return
        context = self._spark._jsc.sc()
        present = context.getExecutorIds()
        ids = [present.apply(index) for index in range(present.size())]
        self._leaving &= set(ids)
        staying = [index for index, name in enumerate(ids) if name not in self._leaving]
        self.running = len(staying)
        # The newest first: the others have compiled the code that they run.
        for index in sorted(staying, key=lambda index: int(ids[index]), reverse=True):
            if self.running <= size:
                break
            # `SparkContext.killExecutors` would end a busy one, too, whose tasks would run again.
            chosen = present.slice(index, index + 1)
            if context.schedulerBackend().killExecutors(chosen, False, False, False).size():
                self._leaving.add(ids[index])
                self.running -= 1
        self._report()

    def _request(self, size: int) -> None:
        nowhere = jvm_of(self._spark).org.apache.spark.api.python.PythonUtils.toScalaMap({})
        self._has_cluster = self._spark._jsc.sc().requestTotalExecutors(size, 0, nowhere)
        self._requested = size
        if self._has_cluster:
            logs.info(f"driver '{self._driver}' asks its cluster for {size} executors")
            return
        logs.warning(
            f"driver '{self._driver}' cannot have {size} executors, as its master is none of a cluster: take it out "
            f"of SLUICE_EXECUTORS, or let the Airflow connection name a cluster"
        )

    def _report(self) -> None:
        if self.running is not None and self.running != self._reported:
            cores = _cores(self._spark.sparkContext.getConf().get("spark.executor.cores"))
            with suppress(Unreachable):
                sizing.report(self._engine, self._driver, self.running, cores)
                self._reported = self.running
