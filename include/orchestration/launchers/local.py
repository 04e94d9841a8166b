"""Drivers on this machine: spark-submit in client mode, with any master."""

from dataclasses import dataclass

from include.control.process import Process
from include.orchestration.launchers import submit
from include.settings import settings


@dataclass(frozen=True)
class Local:
    """options: further spark-submit options for the master."""

    master: str
    options: tuple[str, ...] = ()

    def launch(self, driver: str) -> str:
        executors = ["--conf", f"spark.executor.extraClassPath={settings().spark_class_path}"]
        return submit.start_detached(driver, ["--master", self.master, *executors, *self.options]).to_json()

    def is_alive(self, handle: str) -> bool:
        return Process.from_json(handle).is_alive

    def kill(self, handle: str) -> None:
        submit.kill_tree(Process.from_json(handle))

    def log(self, driver: str, handle: str) -> str:
        return str(submit.log(driver))
