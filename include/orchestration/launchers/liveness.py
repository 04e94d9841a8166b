"""Which drivers have ended. All launchers are queried in parallel, so that one that hangs delays no other driver."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from time import monotonic

from include.orchestration.launchers import launch
from include.orchestration.launchers.launch import Launcher

# For all drivers together: a supervisor's run begins each minute.
ANSWER_SECONDS = 20.0
# Parallel queries; each may be a process, such as kubectl.
MOST_AT_ONCE = 16


class Liveness:
    """Whether the process of each driver's handle is alive."""

    def __init__(self, handles: Mapping[str, str], launcher: Launcher, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._ends_at = monotonic() + answer_seconds
        self._answers: dict[str, Future[bool]] = {driver: Future() for driver in handles}
        queue = [(self._answers[driver], handle) for driver, handle in handles.items()]
        for _ in range(min(MOST_AT_ONCE, len(queue))):
            # No thread pool: this process must be able to end while a query hangs.
            threading.Thread(target=_query_all, args=(queue, launcher), daemon=True).start()

    def is_alive(self, driver: str) -> bool:
        """True also if no answer arrives in time: a second driver must not be started on a guess."""
        try:
            return self._answers[driver].result(max(0.0, self._ends_at - monotonic()))
        except TimeoutError:
            print(f"driver '{driver}': its cluster does not say whether it lives, so it is taken to live")
            return True


def _query_all(queue: list[tuple[Future[bool], str]], launcher: Launcher) -> None:
    with suppress(IndexError):
        while True:
            answer, handle = queue.pop(0)
            try:
                answer.set_result(launch.launcher_of(handle, launcher).is_alive(handle))
            except Exception as error:
                answer.set_exception(error)
