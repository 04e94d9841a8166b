"""Drivers as pods of Kubernetes, by spark-submit in cluster mode.

The image of the pods holds this repository, its packages and its JARs under the paths of this process, so nothing is
uploaded. What else a pod needs is in `spark-defaults.conf` and the pod templates that it names, which the chart
`deploy/helm/sluice` writes.

The API of Kubernetes tells how a pod is, by the service account of this pod. spark-submit would start a JVM for that.
"""

import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from include.airflow.launchers import submit
from include.control.leases.process import Process
from include.errors import SluiceError, Unreachable, UsageError
from include.settings import settings

# Kubernetes mounts it into each pod that may use the API.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_SECONDS = 10
# Between SIGTERM and SIGKILL. With 0, the API would forget the pod before its processes have ended.
GRACE_SECONDS = 1
KILL_SECONDS = 30
STATE_OF = {"Succeeded": "FINISHED", "Failed": "FAILED"}
LABEL = "sluice-driver"
# Spark names a service after the application, `sluice <label>`, and adds 28 characters. A name has 63 at most.
MOST_CHARACTERS = 28


@dataclass(frozen=True)
class Kubernetes:
    """namespace: of the pods; None: that of this pod."""

    master: str
    namespace: str | None = None

    def launch(self, driver: str) -> str:
        return self.submit(submit.JOB, ["--driver", driver], driver)

    def submit(self, job: Path, arguments: list[str], name: str) -> str:
        """Start a pod that runs this job, and return its handle. Raises UsageError outside of Kubernetes."""
        label = _label(name)
        self._forget_ended(label)
        pod = f"sluice-{label}-{uuid.uuid4().hex[:8]}"
        # Nothing is uploaded from a `local:` URL.
        submitter = submit.start_detached(label, self.options(pod, label), f"local://{job}", arguments)
        place = {"master": self.master, "namespace": self._namespace, "pod": pod}
        return json.dumps({**place, "submitter": asdict(submitter)})

    def options(self, pod: str, label: str) -> list[str]:
        conf = {
            "spark.kubernetes.namespace": self._namespace,
            "spark.kubernetes.driver.pod.name": pod,
            f"spark.kubernetes.driver.label.{LABEL}": label,
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.driver.extraClassPath": settings().spark_class_path,
            "spark.executor.extraClassPath": settings().spark_class_path,
            **submit.environment("spark.kubernetes.driverEnv.", "the secret of the pods, a file PGPASSWORD"),
        }
        return ["--master", self.master, "--deploy-mode", "cluster", *submit.properties(conf)]

    def is_alive(self, handle: str) -> bool:
        """True also during the submission, and if Kubernetes does not answer."""
        return self.state(handle) is None

    def state(self, handle: str) -> str | None:
        """FINISHED, FAILED, or LOST: the pod is gone, or its node does not confirm its end. None if it may live."""
        document = json.loads(handle)
        if Process(**document["submitter"]).is_alive:
            return None
        status, pod = self._ask("GET", _path(document))
        if status == 404 or (status == 200 and _is_overdue(pod)):
            return "LOST"
        return STATE_OF.get(pod["status"]["phase"]) if status == 200 else None

    def kill(self, handle: str) -> None:
        """Kill it, and wait until its node confirms that. Raises Unreachable, and SluiceError if it survives."""
        document = json.loads(handle)
        submit.kill_tree(Process(**document["submitter"]))
        deadline = time.monotonic() + KILL_SECONDS
        while True:
            status, answer = self._ask("DELETE", _path(document), f"?gracePeriodSeconds={GRACE_SECONDS}")
            if status == 404:
                return
            if status not in (200, 202):
                raise Unreachable(
                    f"the pod {document['pod']} cannot be ended ({answer.get('message')}): see that Kubernetes answers"
                )
            if time.monotonic() > deadline:
                raise SluiceError(
                    f"the pod {document['pod']} outlives the order to end: see that its node works, or delete the node"
                )
            time.sleep(0.5)

    def log(self, driver: str, handle: str) -> str:
        document = json.loads(handle)
        command = f"kubectl logs -n {document['namespace']} {document['pod']}"
        label = document["pod"].removeprefix("sluice-").rpartition("-")[0]
        return f"{command}; its submission: {submit.log(label)}"

    @property
    def _namespace(self) -> str:
        return self.namespace or _read("namespace")

    def _forget_ended(self, label: str) -> None:
        """Delete the driver's pods that have ended, except the last one, whose log tells why."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        status, answer = self._ask("GET", path, f"?labelSelector={LABEL}%3D{label}")
        pods = answer["items"] if status == 200 else []
        ended = [pod["metadata"] for pod in pods if pod["status"].get("phase") in STATE_OF]
        for pod in sorted(ended, key=lambda metadata: str(metadata["creationTimestamp"]))[:-1]:
            self._ask("DELETE", f"{path}/{pod['name']}")

    def _ask(self, method: str, path: str, query: str = "") -> tuple[int, dict[str, Any]]:
        """Status and JSON answer of the API; status 0 and a `message` if it does not answer."""
        address = self.master.removeprefix("k8s://")
        url = f"{address if '://' in address else f'https://{address}'}{path}{query}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {_read('token')}"}, method=method)
        trust = ssl.create_default_context(cadata=_read("ca.crt"))
        # Requests to the cluster bypass the proxy of the environment.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        try:
            with opener.open(request, timeout=ANSWER_SECONDS) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, {"message": f"{error}: {error.read().decode(errors='replace')[:300]}"}
        except (OSError, ValueError) as error:
            return 0, {"message": str(error)}


def _path(document: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{document['namespace']}/pods/{document['pod']}"


def _is_overdue(pod: dict[str, Any]) -> bool:
    """Whether it should have ended by now. A node that is lost confirms no end."""
    ends_at = pod["metadata"].get("deletionTimestamp")
    return bool(ends_at) and datetime.fromisoformat(ends_at) < datetime.now(UTC)


def _label(name: str) -> str:
    return re.sub("[^a-z0-9]+", "-", name.lower())[:MOST_CHARACTERS].strip("-")


def _read(name: str) -> str:
    try:
        return (SERVICE_ACCOUNT / name).read_text().strip()
    except OSError as error:
        raise UsageError(
            f"the Airflow connection selects Kubernetes, and {SERVICE_ACCOUNT / name} cannot be read "
            f"({error.strerror}): run Airflow in the cluster, with the service account of deploy/helm/sluice"
        ) from error
