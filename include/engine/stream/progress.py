"""Keeps Spark's progress report of each micro-batch in the driver's journal.

It asks for the reports every few seconds instead of using a `StreamingQueryListener`. A listener's idle event says only
that the query is idle, and reports lost in its queue or callback are lost. Spark keeps the newest reports of a query,
even after the query has ended.
"""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

from include import logs
from include.engine.stream.executors import Executors
from include.engine.stream.flow import RunningFlow
from include.monitoring.query_progress import Journal

ERROR_CHARACTERS = 2_000
# Asking takes several calls into the JVM for each flow, even if nothing is new.
KEEP_SECONDS = 5


class Progress:
    """Journals the progress of one driver's flows. An error never fails a flow: it is printed once, and tried again."""

    def __init__(self, driver: str, executors: Executors) -> None:
        self._driver = driver
        self._executors = executors
        self._journal = Journal()
        self._is_failing = False

    def keep(self, flow: RunningFlow) -> None:
        """Journals the new reports of the flow, if the last call is at least `KEEP_SECONDS` ago."""
        if time.monotonic() < flow.journaled_at + KEEP_SECONDS:
            return
        flow.journaled_at = time.monotonic()
        self._attempt(lambda: self._keep(flow))

    def end(self, flow: RunningFlow) -> None:
        """Journals the last reports of a query that has ended, and its error."""
        self._attempt(lambda: self._keep(flow))
        self._attempt(lambda: self._write([self._ending(flow)]))

    def rotate(self) -> None:
        """Closes the journal's segment if it is due, so that it can be gathered."""
        self._attempt(self._journal.turn)

    def finish(self) -> None:
        """Closes the journal's last segment."""
        self._attempt(self._journal.finish)

    def _keep(self, flow: RunningFlow) -> None:
        query = flow.query._jsq
        newest = query.lastProgress()
        if newest is None or newest.timestamp() == flow.journaled_timestamp:
            return
        reports = query.recentProgress()
        lines: list[str] = []
        # Each access is a call into the JVM, so this goes from the newest back to the last one journaled.
        for index in range(len(reports) - 1, -1, -1):
            if reports[index].timestamp() == flow.journaled_timestamp:
                break
            counts = flow.counts.get(reports[index].batchId())
            lines.append(self._report(flow, reports[index].json(), counts._asdict() if counts else {}))
        self._write(lines[::-1])
        flow.journaled_timestamp = newest.timestamp()

    def _report(self, flow: RunningFlow, report: str, counts: dict[str, object]) -> str:
        facts = json.loads(report)
        ended_at = datetime.fromisoformat(facts["timestamp"]).timestamp() + facts["batchDuration"] / 1_000
        running = self._executors.running_at(ended_at)
        scaled = {} if running is None else {"executors": running}
        return self._line(flow, **scaled, report=report, **counts)

    def _ending(self, flow: RunningFlow) -> str:
        query = flow.query
        error = None if flow.is_stopped_at_gate else (flow.error or query.exception())
        ending = {
            "id": str(query.id),
            "runId": str(query.runId),
            "timestamp": datetime.now(UTC).isoformat(),
            # None if the query ended between two batches, or Spark could not make one.
            "batchId": flow.batch if flow.error else None,
            "error": None if error is None else f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS],
        }
        return self._line(flow, ending=ending)

    def _line(self, flow: RunningFlow, **values: object) -> str:
        head = {"driver": self._driver, "flow": flow.table.flow, "generation": flow.generation}
        return json.dumps({**head, **values})

    def _write(self, lines: list[str]) -> None:
        self._journal.write(lines)
        self._is_failing = False

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # Any kind of error: a flow must not fail because its progress cannot be journaled.
            if not self._is_failing:
                logs.warning(f"query progress cannot be stored for now: {error}")
            self._is_failing = True
