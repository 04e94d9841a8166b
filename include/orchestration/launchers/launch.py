"""Starts Spark drivers that live on when the Airflow task that started them ends."""

import json
from typing import Any, Protocol
from urllib.parse import urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from include.errors import UsageError
from include.orchestration.launchers.cluster import Kubernetes, Yarn
from include.orchestration.launchers.local import Local
from include.orchestration.launchers.standalone import Standalone

CONNECTION = "spark_default"


class Launcher(Protocol):
    """One kind of place where drivers run. A handle is text by which any later process of this machine finds one."""

    def launch(self, driver: str) -> str:
        """Start `jobs/stream.py --driver <driver>` and return its handle at once."""

    def is_alive(self, handle: str) -> bool:
        """Whether it runs, or may still come to something."""

    def kill(self, handle: str) -> None:
        """End it. Harmless when it is gone."""

    def log(self, driver: str, handle: str) -> str:
        """Where its output is found, in words."""


def launcher() -> Launcher:
    """The one that the Airflow connection asks for, whose extra is spelled as the Spark provider spells it.

    Raises UsageError where it asks for none that exists: the provider would silently submit to YARN.
    """
    master, extra = _connection()
    mode = extra.get("deploy-mode") or "client"
    if mode == "client":
        return Local(master, _options(extra))
    if mode != "cluster":
        raise UsageError(
            f"the Airflow connection '{CONNECTION}' has deploy-mode '{mode}' in its extra: set it to client or cluster"
        )
    if master.startswith("spark://"):
        scheme, port = extra.get("rest-scheme", "http"), extra.get("rest-port", 6066)
        return Standalone(master, f"{scheme}://{urlsplit(master).hostname}:{port}")
    if master.startswith("k8s://"):
        return Kubernetes(master, extra.get("namespace"))
    if master == "yarn":
        return Yarn(extra.get("queue"))
    raise UsageError(
        f"the Airflow connection '{CONNECTION}' has deploy-mode cluster and the host '{master}', which is no cluster: "
        "set the host to spark://..., k8s://... or yarn, or deploy-mode to client"
    )


def of(handle: str, today: Launcher) -> Launcher:
    """The launcher that made the handle: the connection may name another kind of place since."""
    if "pid" in (known := json.loads(handle)):
        return Local("")
    return Standalone("", known["rest"]) if "rest" in known else today


def _connection() -> tuple[str, dict[str, Any]]:
    """Master and extra. As with the Spark provider, a host without a scheme is a standalone one if it has a port."""
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
    return f"{scheme}{connection.host}{port}", connection.extra_dejson


def _options(extra: dict[str, Any]) -> tuple[str, ...]:
    namespace, queue = extra.get("namespace"), extra.get("queue")
    return (
        *(("--conf", f"spark.kubernetes.namespace={namespace}") if namespace else ()),
        *(("--queue", queue) if queue else ()),
    )
