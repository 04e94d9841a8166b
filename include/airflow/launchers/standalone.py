"""Drivers on a worker of a Spark standalone cluster, by the REST API of its master.

spark-submit refuses `--deploy-mode cluster` for Python there. The API runs SparkSubmit itself on a worker, in client
mode. Every worker needs this repository, the jars and the home under the paths of this machine: the same image, or a
shared file system. A worker that ends takes its driver with it.

The API has no TLS, and without `org.apache.spark.ui.JWSFilter` no authentication: do not expose its port.
"""

import json
import os
import re
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64decode
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jwt

from include.airflow.launchers import submit
from include.errors import SluiceError, Unreachable
from include.settings import ROOT, settings

# A new master reports UNKNOWN until it has found its workers.
MAY_LIVE = {"SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"}
ANSWER_SECONDS = 10
# A worker gives a driver 10 s between SIGTERM and SIGKILL.
KILL_SECONDS = 30
TOKEN_SECONDS = 60
# Settings that a JVM needs before it reads spark-defaults.conf. The secret of spark.authenticate is none of them: a
# worker hands its own on.
AT_START = re.compile(
    r"^\s*(spark\.(?:driver\.(?:memory|cores|extraJavaOptions)|authenticate|network\.crypto\.\w+))[ \t=:]+(.*\S)",
    re.MULTILINE,
)

ESCAPED = re.compile(r"\\(u([0-9a-fA-F]{4})|.)")


@dataclass(frozen=True)
class Standalone:
    """rest: URL of the master's REST API. key: of its JWSFilter, in base64url; empty: it has none."""

    master: str
    rest: str
    # Not part of `repr`, because it is a secret.
    key: str = field(default="", repr=False)

    def launch(self, driver: str) -> str:
        """Raises Unreachable. If only the answer was lost, a driver may still come up; the lease admits one."""
        return self.submit(submit.JOB, ["--driver", driver], driver)

    def submit(self, job: Path, arguments: list[str], name: str) -> str:
        """Start a driver that runs this job, and return its handle. Raises Unreachable."""
        request = self._request(job, arguments, name)
        answer = self._ask("POST", f"{self.rest}/v1/submissions/create", request)
        if not answer.get("success"):
            raise Unreachable(
                f"the Spark master's REST API at {self.rest} takes no driver ({answer['message']}): start the master "
                "with spark.master.rest.enabled=true, or correct the Airflow connection's host, rest-port and password"
            )
        return json.dumps({"submission": answer["submissionId"], "rest": self.rest})

    def is_alive(self, handle: str) -> bool:
        """True also if the API does not answer: a second driver must not be started on a guess.

        A driver that the master does not know has ended: a master that lost its state has its workers end such drivers.
        """
        return _may_live(self._status(handle))

    def state(self, handle: str) -> str | None:
        """The state that ends a driver, such as FINISHED or FAILED; None if it may live."""
        status = self._status(handle)
        return None if _may_live(status) else str(status.get("driverState"))

    def kill(self, handle: str) -> None:
        """Kill it, and wait until the master confirms that. Raises Unreachable, and SluiceError if it survives."""
        document = json.loads(handle)
        answer = self._ask("POST", f"{document['rest']}/v1/submissions/kill/{document['submission']}")
        if answer.get("action") != "KillSubmissionResponse":
            raise Unreachable(
                f"the Spark master's REST API at {document['rest']} ends no driver ({answer['message']}): "
                f"see that it answers, or end {document['submission']} on its worker"
            )
        deadline = time.monotonic() + KILL_SECONDS
        while _may_live(self._status(handle)):
            if time.monotonic() > deadline:
                raise SluiceError(f"{document['submission']} outlives the master's order to end: end it on its worker")
            time.sleep(0.2)

    def log(self, driver: str, handle: str) -> str:
        worker = self._status(handle).get("workerHostPort", "that runs it")
        return f"{json.loads(handle)['submission']}/stderr in the work directory of the worker {worker}"

    def _request(self, job: Path, arguments: list[str], name: str) -> dict[str, Any]:
        jars = settings().spark_class_path
        # The driver's spark-submit reads its arguments. The properties of this request end up on the command line of
        # its JVM.
        options = ["--master", self.master, "--conf", f"spark.executor.extraClassPath={jars}"]
        return {
            "action": "CreateSubmissionRequest",
            "appResource": "",
            "mainClass": "org.apache.spark.deploy.SparkSubmit",
            "appArgs": [*options, str(job), *arguments],
            "clientSparkVersion": version("pyspark"),
            "environmentVariables": _environment(),
            "sparkProperties": {
                **_defaults(),
                "spark.app.name": f"sluice {name}",
                "spark.driver.extraClassPath": jars,
            },
        }

    def _status(self, handle: str) -> dict[str, Any]:
        document = json.loads(handle)
        return self._ask("GET", f"{document['rest']}/v1/submissions/status/{document['submission']}")

    def _ask(self, method: str, url: str, body: Any = None) -> dict[str, Any]:
        """The JSON answer of the API. A failure is in its `message`."""
        data = json.dumps(body).encode() if body else None
        headers = {"Content-Type": "application/json", **self._authorization()}
        request = urllib.request.Request(url, data, headers, method=method)
        # Requests to the cluster bypass the proxy of the environment.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=ANSWER_SECONDS) as response:
                document = json.load(response)
        except urllib.error.HTTPError as error:
            document = {"message": f"{error}: {error.read().decode(errors='replace')[:300]}"}
        except (OSError, ValueError) as error:
            document = {"message": str(error)}
        if not isinstance(document, dict):
            document = {}
        return {"message": "no reason given", **document}

    def _authorization(self) -> dict[str, str]:
        """A token that expires soon, because it travels without TLS."""
        if not self.key:
            return {}
        token = jwt.encode({"exp": int(time.time()) + TOKEN_SECONDS}, urlsafe_b64decode(self.key), "HS256")
        return {"Authorization": f"Bearer {token}"}


def _environment() -> dict[str, str]:
    """The environment variables of the driver. Others come from the worker."""
    variables = {name: os.environ[name] for name in ("PYSPARK_PYTHON", "SPARK_CONF_DIR") if name in os.environ}
    public_settings = submit.settings_to_hand_on("the .pgpass of the user that its worker runs as")
    return {**public_settings, **variables, "PYTHONPATH": str(ROOT)}


def _defaults() -> dict[str, str]:
    directory = os.environ.get("SPARK_CONF_DIR")
    file = Path(directory, "spark-defaults.conf") if directory else None
    found = AT_START.findall(file.read_text()) if file and file.exists() else []
    return {name: ESCAPED.sub(_unescape, value) for name, value in found}


def _unescape(escaped: re.Match[str]) -> str:
    """A character as a properties file has it, such as `\\u00fc` or `\\\\`."""
    return chr(int(escaped[2], 16)) if escaped[2] else escaped[1]


def _may_live(status: dict[str, Any]) -> bool:
    if status.get("action") != "SubmissionStatusResponse":
        return True
    return status.get("driverState") in MAY_LIVE
