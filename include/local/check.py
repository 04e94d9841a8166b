"""Refuses wrong table files, in sentences: `make check`. Nothing is started that goes on."""

import os
import sys

from include.errors import report
from include.local import environment, install, java
from include.settings import settings

# The check is over before a second compiler would have paid. PySpark would note for each column expression where it
# stands, which takes half of the time that building a plan does.
SHORT_LIVED = {
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
    "PYSPARK_SUBMIT_ARGS": "--conf spark.python.sql.dataFrameDebugging.enabled=false pyspark-shell",
}


def main() -> None:
    java_home = java.home()
    variables = environment.of_process(environment.write_spark(settings(), java_home), java_home)
    command = [str(install.venv() / "bin" / "python"), "-m", "include.engine.check.check", *sys.argv[1:]]
    os.execve(command[0], command, {**SHORT_LIVED, **variables})


if __name__ == "__main__":
    report(main)
