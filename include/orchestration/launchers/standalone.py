"""Drivers on a worker of a Spark standalone cluster, by the REST API of its master.

spark-submit refuses `--deploy-mode cluster` for Python there; the API runs SparkSubmit itself on a worker, and that
runs the job in client mode. Every worker has to have this repository, the jars and the home under the paths they have
here: the same image, or a shared file system. A worker that ends takes its driver with it.

The API has no authentication: keep its port inside.
"""

import json
import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from include.errors import SluiceError, Unreachable
from include.orchestration.launchers import submit
from include.settings import ROOT, settings

# UNKNOWN is said while a new master still looks for its workers.
MAY_LIVE = {"SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"}
ANSWER_SECONDS = 10
# A worker gives a driver 10 s between SIGTERM and SIGKILL.
KILL_SECONDS = 30
# What a JVM has to know before it reads its spark-defaults.conf.
AT_START = re.compile(r"^\s*(spark\.driver\.(?:memory|cores|extraJavaOptions))[ \t=:]+(.*\S)", re.MULTILINE)


@dataclass(frozen=True)
class Standalone:
    """rest: URL of the master's REST API."""

    master: str
    rest: str

    def launch(self, driver: str) -> str:
        """Raises Unreachable. A driver may come up all the same if only the answer got lost; the lease allows one."""
        answer = _ask("POST", f"{self.rest}/v1/submissions/create", self._request(driver))
        if not answer.get("success"):
            raise Unreachable(
                f"the Spark master's REST API at {self.rest} takes no driver ({answer['message']}): start the master "
                "with spark.master.rest.enabled=true, or correct the Airflow connection's host and rest-port"
            )
        return json.dumps({"submission": answer["submissionId"], "rest": self.rest})

    def is_alive(self, handle: str) -> bool:
        """True also where the API does not answer: a second driver must not be started on a guess.

        A driver that the master does not know is gone: a master that lost its memory has its workers end such drivers.
        """
        return _may_live(_status(handle))

    def kill(self, handle: str) -> None:
        """Return when the master says that it is gone. Raises Unreachable where the master does not answer."""
        where = json.loads(handle)
        answer = _ask("POST", f"{where['rest']}/v1/submissions/kill/{where['submission']}")
        if answer.get("action") != "KillSubmissionResponse":
            raise Unreachable(
                f"the Spark master's REST API at {where['rest']} ends no driver ({answer['message']}): "
                f"see that it answers, or end {where['submission']} on its worker"
            )
        deadline = time.monotonic() + KILL_SECONDS
        while _may_live(_status(handle)):
            if time.monotonic() > deadline:
                raise SluiceError(f"{where['submission']} outlives the master's order to end: end it on its worker")
            time.sleep(0.2)

    def log(self, driver: str, handle: str) -> str:
        worker = _status(handle).get("workerHostPort", "that runs it")
        return f"{json.loads(handle)['submission']}/stderr in the work directory of the worker {worker}"

    def _request(self, driver: str) -> dict[str, Any]:
        jars = settings().spark_class_path
        # The driver's own spark-submit reads its arguments, not the properties of this request; those end up on the
        # command line of its JVM.
        options = ["--master", self.master, "--conf", f"spark.executor.extraClassPath={jars}"]
        return {
            "action": "CreateSubmissionRequest",
            "appResource": "",
            "mainClass": "org.apache.spark.deploy.SparkSubmit",
            "appArgs": [*options, str(submit.JOB), "--driver", driver],
            "clientSparkVersion": version("pyspark"),
            "environmentVariables": _environment(),
            "sparkProperties": {
                **_defaults(),
                "spark.app.name": f"sluice {driver}",
                "spark.driver.extraClassPath": jars,
            },
        }


def _environment() -> dict[str, str]:
    """What the driver needs to find its way; what is not set here, the worker has its own idea of."""
    given = {name: os.environ[name] for name in ("PYSPARK_PYTHON", "SPARK_CONF_DIR") if name in os.environ}
    return {**submit.settings_to_hand_on(), **given, "PYTHONPATH": str(ROOT)}


def _defaults() -> dict[str, str]:
    directory = os.environ.get("SPARK_CONF_DIR")
    file = Path(directory, "spark-defaults.conf") if directory else None
    return dict(AT_START.findall(file.read_text())) if file and file.exists() else {}


def _status(handle: str) -> dict[str, Any]:
    where = json.loads(handle)
    return _ask("GET", f"{where['rest']}/v1/submissions/status/{where['submission']}")


def _may_live(status: dict[str, Any]) -> bool:
    if status.get("action") != "SubmissionStatusResponse":
        return True
    return status.get("driverState") in MAY_LIVE


def _ask(method: str, url: str, body: Any = None) -> dict[str, Any]:
    """The answer, which has a `message` where it is not the one hoped for."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    # A proxy of the environment must not get what is meant for the cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            document = json.load(answer)
    except urllib.error.HTTPError as error:
        document = {"message": f"{error}: {error.read().decode(errors='replace')[:300]}"}
    except (OSError, ValueError) as error:
        document = {"message": str(error)}
    if not isinstance(document, dict):
        document = {}
    return {"message": "no reason given", **document}
