"""Becomes Spark's master or one of its workers: python -m include.containers.spark master|worker"""

import argparse
import os
import platform
from pathlib import Path

from include.errors import report
from include.local import artifacts
from include.settings import settings

CLASSES = {
    "master": "org.apache.spark.deploy.master.Master",
    "worker": "org.apache.spark.deploy.worker.Worker",
}
ADDRESS = "spark://spark-master:7077"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=CLASSES)
    parser.add_argument("--cores", type=int, help="that a worker offers; a driver and its executor take one each")
    parser.add_argument("--memory", help="that a worker offers, such as 2g")
    arguments = parser.parse_args()
    # By default, a daemon is known by an address, which is another one after a restart.
    options = ["--host", platform.node()]
    if arguments.kind == "worker":
        options += ["--cores", str(arguments.cores), "--memory", arguments.memory]
        options += ["--work-dir", str(settings().home / "spark" / platform.node()), ADDRESS]
    run(CLASSES[arguments.kind], options)


def run(main_class: str, options: list[str]) -> None:
    home = artifacts.pyspark_jars().parent
    variables = {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
    program = Path(home, "bin", "spark-class")
    os.execve(program, [str(program), main_class, *options], {**os.environ, **variables})


if __name__ == "__main__":
    report(main)
