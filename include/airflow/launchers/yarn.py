"""Drivers on YARN, by spark-submit in cluster mode.

Every node needs this repository, the jars, the home and the Python environment under the paths of this machine: the
same image, or a shared file system. So only the file of the job is uploaded.

The REST API of the ResourceManager tells how an application is. The `yarn` command would start a JVM for that. The API
has no authentication here, so a cluster with Kerberos is not supported.
"""

import getpass
import importlib.util
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from include.airflow.launchers import submit
from include.control.leases.process import Process
from include.errors import SluiceError, Unreachable
from include.settings import settings

ANSWER_SECONDS = 10
KILL_SECONDS = 30
STATE_OF = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "KILLED": "KILLED"}
ENDED = {"FINISHED", "FAILED", "KILLED"}
# States of an application on a node while it has containers.
ON_NODE = {"NEW", "INITING", "RUNNING", "FINISHING_CONTAINERS_WAIT"}


@dataclass(frozen=True)
class Yarn:
    """resource_manager: URL of its REST API. queue: None: the default one."""

    resource_manager: str
    queue: str | None = None

    def launch(self, driver: str) -> str:
        return self.submit(submit.JOB, ["--driver", driver], driver)

    def submit(self, job: Path, arguments: list[str], name: str) -> str:
        """Start an application that runs this job, and return its handle. Its tag finds it later."""
        label = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
        tag = f"sluice-{label}-{uuid.uuid4().hex[:8]}"
        submitter = submit.start_detached(label, self.options(tag), str(job), arguments)
        return json.dumps({"resource_manager": self.resource_manager, "tag": tag, "submitter": asdict(submitter)})

    def options(self, tag: str) -> list[str]:
        variables = submit.environment("spark.yarn.appMasterEnv.", "a .pgpass that PGPASSFILE names")
        if "PGPASSFILE" in os.environ:
            # YARN sets HOME to a directory without a .pgpass.
            variables["spark.yarn.appMasterEnv.PGPASSFILE"] = os.environ["PGPASSFILE"]
        conf = {
            "spark.yarn.tags": tag,
            "spark.yarn.submit.waitAppCompletion": "false",
            # Only the supervisor restarts drivers.
            "spark.yarn.maxAppAttempts": "1",
            # Nothing is uploaded from a `local:` URL.
            "spark.yarn.jars": f"local:{_spark_jars()}/*",
            "spark.driver.extraClassPath": settings().spark_class_path,
            "spark.executor.extraClassPath": settings().spark_class_path,
            **variables,
        }
        queue = ["--queue", self.queue] if self.queue else []
        return ["--master", "yarn", "--deploy-mode", "cluster", *submit.properties(conf), *queue]

    def is_alive(self, handle: str) -> bool:
        """True also during the submission, and if YARN does not answer."""
        return self.state(handle) is None

    def state(self, handle: str) -> str | None:
        """FINISHED, FAILED, KILLED, or LOST: YARN does not know it. None if it may live."""
        document = self._document(handle)
        if Process(**document["submitter"]).is_alive:
            return None
        try:
            application = _application(document)
        except Unreachable:
            return None
        if not application:
            return "LOST"
        return STATE_OF.get(application["finalStatus"], "FAILED") if _has_ended(application) else None

    def kill(self, handle: str) -> None:
        """Kill it, and wait until YARN confirms that. Raises Unreachable, and SluiceError if it survives."""
        document = self._document(handle)
        submit.kill_tree(Process(**document["submitter"]))
        deadline = time.monotonic() + KILL_SECONDS
        while (application := _application(document)) and not _has_ended(application):
            if time.monotonic() > deadline:
                raise SluiceError(f"{application['id']} outlives the order to end: end it on its node")
            if application["state"] not in ENDED:
                _ask(document, f"/{application['id']}/state", {"state": "KILLED"})
            time.sleep(0.5)

    def log(self, driver: str, handle: str) -> str:
        tag = self._document(handle)["tag"]
        label = tag.removeprefix("sluice-").rpartition("-")[0]
        return f"yarn logs of the application with the tag {tag}; its submission: {submit.log(label)}"

    def _document(self, handle: str) -> dict[str, Any]:
        """The parts of a handle. Those of earlier releases call the tag a name, and do not say where YARN answers."""
        document = json.loads(handle)
        return {"resource_manager": self.resource_manager, "tag": document.get("name"), **document}


def _spark_jars() -> Path:
    """The directory of the jars that PySpark ships, found without an import of PySpark."""
    package = importlib.util.find_spec("pyspark")
    assert package and package.origin
    return Path(package.origin).parent / "jars"


def _application(document: dict[str, Any]) -> dict[str, Any] | None:
    """The application with the tag of a handle. Raises Unreachable."""
    answer = _ask(document, f"?applicationTags={document['tag']}")
    applications: list[dict[str, Any]] = (answer.get("apps") or {}).get("app") or []
    return applications[0] if applications else None


def _has_ended(application: dict[str, Any]) -> bool:
    """Whether its processes have ended. The ResourceManager says so some seconds before its node ends them."""
    if application["state"] not in ENDED:
        return False
    node = application.get("amHostHttpAddress")
    try:
        on_node = _request(f"http://{node}/ws/v1/node/apps/{application['id']}") if node else {}
    except (OSError, ValueError):
        # The node has forgotten it. Whether a node is lost is for the ResourceManager to judge.
        return True
    return (on_node.get("app") or {}).get("state") not in ON_NODE


def _ask(document: dict[str, Any], path: str, body: Any = None) -> dict[str, Any]:
    """The ResourceManager's answer about applications. body: of a PUT. Raises Unreachable."""
    address = document["resource_manager"]
    user = urllib.parse.quote(os.environ.get("HADOOP_USER_NAME") or getpass.getuser())
    url = f"{address}/ws/v1/cluster/apps{path}{'&' if '?' in path else '?'}user.name={user}"
    try:
        return _request(url, body)
    except urllib.error.HTTPError as error:
        reason = f"{error}: {error.read().decode(errors='replace')[:300]}"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise Unreachable(
        f"the ResourceManager at {address} does not tell how {document['tag']} is ({reason}): see that it answers, "
        "and correct resource-manager in the extra of the Airflow connection"
    )


def _request(url: str, body: Any = None) -> dict[str, Any]:
    """The JSON answer. Raises OSError and ValueError."""
    data = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(url, data, headers, method="PUT" if body else "GET")
    # Requests to the cluster bypass the proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=ANSWER_SECONDS) as response:
        document = json.load(response)
    if not isinstance(document, dict):
        raise ValueError(f"the answer is no JSON object, but {document!r}")
    return document
