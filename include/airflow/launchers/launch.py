"""Starts Spark drivers that outlive the Airflow task that starts them, and asks which of them have ended."""

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from include import logs
from include.airflow.launchers.kubernetes import Kubernetes
from include.airflow.launchers.standalone import Standalone
from include.airflow.launchers.submit import Local
from include.airflow.launchers.yarn import Yarn
from include.errors import SluiceError, UsageError

CONNECTION = "spark_default"


class Launcher(Protocol):
    """One kind of place where drivers run. A handle is text by which a later process of this machine finds a driver."""

    def launch(self, driver: str) -> str:
        """Start `jobs/stream.py --driver <driver>` and return its handle at once."""

    def is_alive(self, handle: str) -> bool:
        """Whether it runs, or may still come up."""

    def kill(self, handle: str) -> None:
        """Kill it. Harmless if it has ended."""

    def log(self, driver: str, handle: str) -> str:
        """Where its output is, in words."""


def launcher() -> Launcher:
    """The launcher that the Airflow connection selects. The extra has the keys of the Spark provider.

    Raises UsageError if the connection is missing or selects none: the provider would silently submit to YARN.
    """
    master, password, extra = _connection()
    mode = extra.get("deploy-mode") or "client"
    if mode == "client":
        return Local(master, _options(extra))
    if mode != "cluster":
        raise UsageError(
            f"the Airflow connection '{CONNECTION}' has deploy-mode '{mode}' in its extra: set it to client or cluster"
        )
    if master.startswith("spark://"):
        scheme, port = extra.get("rest-scheme", "http"), extra.get("rest-port", 6066)
        return Standalone(master, f"{scheme}://{urlsplit(master).hostname}:{port}", password)
    if master.startswith("k8s://"):
        return Kubernetes(master, extra.get("namespace"))
    if master == "yarn":
        if resource_manager := extra.get("resource-manager"):
            return Yarn(resource_manager.rstrip("/"), extra.get("queue"))
        raise UsageError(
            f"the Airflow connection '{CONNECTION}' selects YARN, and does not say where it answers: "
            "add resource-manager to its extra, such as http://HOST:8088"
        )
    raise UsageError(
        f"the Airflow connection '{CONNECTION}' has deploy-mode cluster and the host '{master}', which is no cluster: "
        "set the host to spark://..., k8s://... or yarn, or deploy-mode to client"
    )


def launcher_of(handle: str, current: Launcher) -> Launcher:
    """The launcher that created the handle. The connection may select another kind of place since."""
    if "pid" in (document := json.loads(handle)):
        return Local("")
    if "rest" in document:
        return Standalone("", document["rest"], current.key if isinstance(current, Standalone) else "")
    if "pod" in document:
        return Kubernetes(document["master"])
    return Yarn(document["resource_manager"]) if "resource_manager" in document else current


def _connection() -> tuple[str, str, dict[str, Any]]:
    """Master, password and extra.

    As in the Spark provider, a host without a scheme is a standalone master if it has a port.
    """
    try:
        connection = BaseHook.get_connection(CONNECTION)
    except AirflowNotFoundException as error:
        raise UsageError(
            f"the Airflow connection '{CONNECTION}' is missing, and without it nobody knows where Spark runs: "
            f"add it (airflow connections add {CONNECTION} --conn-type spark --conn-host 'local[*]')"
        ) from error
    if not connection.host:
        raise UsageError(
            f"the Airflow connection '{CONNECTION}' has no host: set it to a Spark master, such as local[*]"
        )
    scheme = "spark://" if connection.port and "://" not in connection.host else ""
    port = f":{connection.port}" if connection.port else ""
    return f"{scheme}{connection.host}{port}", connection.password or "", connection.extra_dejson


def _options(extra: dict[str, Any]) -> tuple[str, ...]:
    namespace, queue = extra.get("namespace"), extra.get("queue")
    return (
        *(("--conf", f"spark.kubernetes.namespace={namespace}") if namespace else ()),
        *(("--queue", queue) if queue else ()),
    )


# For all drivers together: a supervisor's run begins each minute.
ANSWER_SECONDS = 20.0
END_SECONDS = 20.0
# Parallel queries; each may be a process, such as kubectl.
MOST_AT_ONCE = 16


class Processes:
    """The newest process of each driver, by its handle."""

    def __init__(
        self,
        handles: Mapping[str, str],
        launcher: Launcher,
        answer_seconds: float = ANSWER_SECONDS,
        end_seconds: float = END_SECONDS,
    ) -> None:
        self._handles, self._launcher = dict(handles), launcher
        self._answers_end_at, self._end_seconds_left = monotonic() + answer_seconds, end_seconds
        self._answers: dict[str, Future[bool]] = {driver: Future() for driver in handles}
        queue = [(self._answers[driver], handle) for driver, handle in handles.items()]
        for _ in range(min(MOST_AT_ONCE, len(queue))):
            # No thread pool: this process must be able to end while a query hangs.
            threading.Thread(target=_query_all, args=(queue, launcher), daemon=True).start()

    def dead_handle(self, driver: str) -> str | None:
        """The handle, if its process has ended.

        None also if no answer arrives in time: a second driver must not be started on a guess.
        """
        if driver not in self._handles:
            return None
        try:
            is_alive = self._answers[driver].result(max(0.0, self._answers_end_at - monotonic()))
        except TimeoutError:
            logs.warning(f"driver '{driver}': its cluster did not answer; assuming that it is alive")
            return None
        return None if is_alive else self._handles[driver]

    def kill(self, driver: str) -> None:
        """Kill the process. Raises Unreachable, and SluiceError if it survives."""
        if handle := self._handles.get(driver):
            launcher_of(handle, self._launcher).kill(handle)

    def end_predecessor(self, driver: str) -> None:
        """End the process of a driver that has lost its lease, before its successor starts.

        It may be frozen, with locks on files that it shares with its successor. Without a confirmation in time, such as
        that of a lost node, the successor starts as well. The order to end stands, and leases protect the tables.
        """
        if driver not in self._handles:
            return
        end: Future[None] = Future()
        threading.Thread(target=_call, args=(end, partial(self.kill, driver)), daemon=True).start()
        began_at = monotonic()
        try:
            end.result(self._end_seconds_left)
        except TimeoutError:
            logs.warning(f"driver '{driver}': its predecessor was ordered to end, and has not confirmed that so far")
        except SluiceError as error:
            logs.warning(f"driver '{driver}': its predecessor may still live: {error}")
        self._end_seconds_left = max(0.0, self._end_seconds_left - (monotonic() - began_at))


def _query_all(queue: list[tuple[Future[bool], str]], launcher: Launcher) -> None:
    with suppress(IndexError):
        while True:
            answer, handle = queue.pop(0)
            _call(answer, partial(_is_alive, handle, launcher))


def _is_alive(handle: str, launcher: Launcher) -> bool:
    return launcher_of(handle, launcher).is_alive(handle)


def _call(answer: Future[Any], function: Callable[[], Any]) -> None:
    try:
        answer.set_result(function())
    except Exception as error:
        answer.set_exception(error)
