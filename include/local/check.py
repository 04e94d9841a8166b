"""Checks the table files, and prints a sentence for each mistake: `make check`. No process stays running."""

import os
import sys

from include.errors import report
from include.local import environment, install, java
from include.settings import settings

# The check ends before the JVM's second compiler would pay off. PySpark's DataFrame debugging records the call site of
# each column expression, which takes half of the time to build a plan.
SHORT_LIVED = {
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
    "PYSPARK_SUBMIT_ARGS": "--conf spark.python.sql.dataFrameDebugging.enabled=false pyspark-shell",
}


def main() -> None:
    java_home = java.home()
    variables = environment.process_environment(environment.write_spark(settings(), java_home), java_home)
    command = [str(install.venv() / "bin" / "python"), "-m", "include.engine.check.check", *sys.argv[1:]]
    os.execve(command[0], command, {**SHORT_LIVED, **variables})


if __name__ == "__main__":
    report(main)
