"""What a job of any kind does. A kind is a subclass of `Job`: its file in `include.engine.jobs` is all that it needs.

A job is planned as stages, and a retry plans what an earlier try has left.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from sqlalchemy import Engine

from include.control.flows import queue
from include.control.jobs import store
from include.control.jobs.store import StoredJob
from include.control.store.job_id import JobId


class HoldsLeases(Protocol):
    """A process that may do jobs."""

    def hold_leases(self, names: list[str], timeout_seconds: float) -> AbstractContextManager[None]:
        """Holds these leases, which it waits for. Raises LeaseHeld if that takes longer than `timeout_seconds`."""


Worker = TypeVar("Worker", bound=HoldsLeases)
Stage = TypeVar("Stage")


class Job(ABC, Generic[Worker, Stage]):
    """A job of the control database, which a process of its own and a driver do alike. Every method raises Unreachable.

    KIND: names it in the control database, in leases and in commands. SCRIPT: does it in a process of its own.
    MOST_TRIES: it is begun in no more drivers, if it ends each. id: names the job, and its lease.
    """

    KIND: ClassVar[str]
    SCRIPT: ClassVar[str]
    MOST_TRIES: ClassVar[int] = 1
    OF_KIND: ClassVar[dict[str, type["Job[Any, Any]"]]] = {}

    def __init__(self, engine: Engine, id_: JobId) -> None:
        self.engine = engine
        self.id = id_

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        Job.OF_KIND[cls.KIND] = cls

    @abstractmethod
    def plan(self, worker: Worker) -> Sequence[Stage]:
        """Returns the stages that are left, in order. It is asked again after each, because a stage may add others."""

    @abstractmethod
    def run(self, worker: Worker, stage: Stage) -> None:
        """Does one stage, or what an earlier try has left of it."""

    def stored(self) -> StoredJob:
        """Returns the job as it is stored. Raises UsageError if it does not exist."""
        return store.get(self.engine, StoredJob, self.id.number, self.id.kind)

    def claim(self) -> bool:
        """Counts a try of a driver. Returns False if the request was withdrawn. Raises FlowFailed after too many."""
        return queue.claim(self.engine, self.id, self.MOST_TRIES, f"spark-submit {self.SCRIPT}")

    def hold(self, worker: Worker) -> AbstractContextManager[None]:
        """Holds the leases that admit one process at a time."""
        return worker.hold_leases([str(self.id)], timeout_seconds=0)

    def fail(self, reason: str) -> None:
        """Stores the failure, and withdraws the request. Called again after Unreachable."""
        store.fail_request(self.engine, self.id, reason)

    def work(self, worker: Worker) -> None:
        """Does what is left of the job. worker: holds no lease yet. Raises LeaseHeld if another process does it."""
        with self.hold(worker):
            while stages := self.plan(worker):
                self.run(worker, stages[0])
