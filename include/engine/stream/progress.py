"""Keeps what Spark reports of each micro-batch, in the driver's journal.

The reports are asked for every few seconds, and not told by a listener: a listener's idle event says nothing but that
the query is idle, and what its queue or callback loses is lost, while Spark remembers the newest reports of a query,
also after that has ended.
"""

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from include.engine.stream.flow import Flow
from include.monitoring.progress_journal import Journal

ERROR_CHARACTERS = 2_000
# Each look is several calls into the JVM, for each flow, also where nothing happens.
KEEP_SECONDS = 5


class Progress:
    """Of the flows of one driver. What goes wrong here is no flow's concern: it is said once, and tried again."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._journal = Journal()
        self._is_failing = False

    def keep(self, flow: Flow) -> None:
        """Write down what is new since the last time, where that is long enough ago."""
        if time.monotonic() < flow.kept_at + KEEP_SECONDS:
            return
        flow.kept_at = time.monotonic()
        self._attempt(lambda: self._keep(flow))

    def end(self, flow: Flow) -> None:
        """Write down the last reports of a query that has ended, and how it ended."""
        self._attempt(lambda: self._keep(flow))
        self._attempt(lambda: self._write([self._ending(flow)]))

    def turn(self) -> None:
        """Let go of what can be gathered."""
        self._attempt(self._journal.turn)

    def finish(self) -> None:
        """Let go of all."""
        self._attempt(self._journal.finish)

    def _keep(self, flow: Flow) -> None:
        query = flow.query._jsq
        newest = query.lastProgress()
        if newest is None or newest.timestamp() == flow.kept:
            return
        reports = query.recentProgress()
        new: list[str] = []
        # Each look at one is a call into the JVM, so from the newest on back to the one that is known.
        for place in range(len(reports) - 1, -1, -1):
            if reports[place].timestamp() == flow.kept:
                break
            rows = flow.rows_read.get(reports[place].batchId())
            new.append(self._line(flow, report=reports[place].json(), rows=rows))
        self._write(new[::-1])
        flow.kept = newest.timestamp()

    def _ending(self, flow: Flow) -> str:
        query = flow.query
        error = None if flow.is_stopped_at_gate else (flow.error or query.exception())
        ending = {
            "id": str(query.id),
            "runId": str(query.runId),
            "timestamp": datetime.now(UTC).isoformat(),
            # Else it ended between two batches, or Spark itself could not make one.
            "batchId": flow.batch if flow.error else None,
            "error": None if error is None else f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS],
        }
        return self._line(flow, ending=ending)

    def _line(self, flow: Flow, **told: object) -> str:
        generation = flow.generation
        return json.dumps({"driver": self._driver, "flow": flow.table.flow, "generation": generation, **told})

    def _write(self, lines: list[str]) -> None:
        self._journal.write(lines)
        self._is_failing = False

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # Of whatever kind: a flow must not end because nobody could write down how it does.
            if not self._is_failing:
                print(f"sluice: query progress is not written down for now: {error}", file=sys.stderr, flush=True)
            self._is_failing = True
