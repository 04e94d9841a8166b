"""Which drivers' processes have ended: all launchers are asked at once, and one that hangs holds up no other driver."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from time import monotonic

from include.orchestration.launchers import launch
from include.orchestration.launchers.launch import Launcher

# For all of them: a supervisor's run begins each minute.
ANSWER_SECONDS = 20.0
# At once: each may be a command of its cluster's client, such as kubectl.
MOST_AT_ONCE = 16


class Liveness:
    """By driver, the answer about the process that has this handle."""

    def __init__(self, handles: Mapping[str, str], place: Launcher, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._ends_at = monotonic() + answer_seconds
        self._answers: dict[str, Future[bool]] = {driver: Future() for driver in handles}
        waiting = [(self._answers[driver], handle) for driver, handle in handles.items()]
        for _ in range(min(MOST_AT_ONCE, len(waiting))):
            # No pool: this process may end although somebody still waits for an answer.
            threading.Thread(target=_ask, args=(waiting, place), daemon=True).start()

    def is_alive(self, driver: str) -> bool:
        """True also where nobody answers in time: a second driver must not be started on a guess."""
        try:
            return self._answers[driver].result(max(0.0, self._ends_at - monotonic()))
        except TimeoutError:
            print(f"driver '{driver}': its cluster does not say whether it lives, so it is taken to live")
            return True


def _ask(waiting: list[tuple[Future[bool], str]], place: Launcher) -> None:
    with suppress(IndexError):
        while True:
            answer, handle = waiting.pop(0)
            try:
                answer.set_result(launch.of(handle, place).is_alive(handle))
            except Exception as error:
                answer.set_exception(error)
