"""Drivers on YARN, by spark-submit in cluster mode.

Not run against a real cluster yet. The commands are tested with answers taken from the sources of Spark 4.2 and Hadoop
3. Other settings of a cluster belong into spark-defaults.conf. The file that `make up` writes binds the driver to this
machine, and cannot be used.
"""

import json
import re
import subprocess
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import ZipFile

from include.airflow.launchers import submit
from include.control.leases.process import Process
from include.errors import Unreachable
from include.settings import ROOT, settings

ANSWER_SECONDS = 60
YARN_ALIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
YARN_ID = re.compile(r"application_\d+_\d+")


@dataclass(frozen=True)
class Yarn:
    """The handle's name is a tag, by which the `yarn` command finds the application."""

    queue: str | None

    def launch(self, driver: str) -> str:
        tag = _unique_name(driver)
        return json.dumps({"name": tag, "submitter": asdict(submit.start_detached(driver, self.options(tag)))})

    def options(self, tag: str) -> list[str]:
        conf = {
            "spark.yarn.tags": tag,
            "spark.yarn.submit.waitAppCompletion": "false",
            # Only the supervisor restarts drivers.
            "spark.yarn.maxAppAttempts": "1",
            **submit.environment("spark.yarn.appMasterEnv.", "the .pgpass of the user it runs as"),
        }
        jars = ",".join(str(jar) for path in ("spark", "s3") for jar in sorted((settings().jars / path).glob("*.jar")))
        options = ["--master", "yarn", "--deploy-mode", "cluster", "--jars", jars, "--py-files", str(_zip())]
        return [*options, *submit.properties(conf), *(["--queue", self.queue] if self.queue else [])]

    def is_alive(self, handle: str) -> bool:
        """True also during the submission, and if YARN does not answer."""
        submitter, tag = _parse(handle)
        if submitter.is_alive:
            return True
        code, answer = self._list(tag)
        return bool(code or YARN_ID.search(answer))

    def kill(self, handle: str) -> None:
        submitter, tag = _parse(handle)
        submit.kill_tree(submitter)
        code, answer = self._list(tag)
        for application in sorted(set(YARN_ID.findall(answer))):
            code, answer = _run(["yarn", "application", "-kill", application])
        if code:
            raise _unreachable(tag, answer)

    def log(self, driver: str, handle: str) -> str:
        return f"yarn logs of the application with the tag {_parse(handle)[1]}; its submission: {submit.log(driver)}"

    def _list(self, tag: str) -> tuple[int, str]:
        return _run(["yarn", "application", "-list", "-appTags", tag, "-appStates", YARN_ALIVE])


def _zip() -> Path:
    """A zip file of the package `include`. Its entries for directories are needed to list the tables."""
    zip_file = settings().home / "tmp" / "include.zip"
    zip_file.parent.mkdir(parents=True, exist_ok=True)
    partial_file = zip_file.with_suffix(f".{uuid.uuid4().hex}")
    with ZipFile(partial_file, "w") as archive:
        for file in sorted((ROOT / "include").rglob("*")):
            if file.suffix == ".py" or (file.is_dir() and file.name != "__pycache__"):
                archive.write(file, file.relative_to(ROOT))
    return partial_file.replace(zip_file)


def _unique_name(driver: str) -> str:
    return f"sluice-{re.sub('[^a-z0-9]+', '-', driver.lower()).strip('-')}-{uuid.uuid4().hex[:8]}"


def _parse(handle: str) -> tuple[Process, str]:
    value = json.loads(handle)
    return Process(**value["submitter"]), value["name"]


def _unreachable(name: str, answer: str) -> Unreachable:
    return Unreachable(f"the driver {name} cannot be ended ({answer.strip()[-300:]}): see that its cluster answers")


def _run(command: list[str]) -> tuple[int, str]:
    """Exit code and output; -1 if the command cannot be run or times out."""
    try:
        completed = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return completed.returncode, completed.stdout
