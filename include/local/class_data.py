"""Makes the archive of the classes that a Spark driver loads: `python -m include.local.class_data`, half a minute.

Java calls it a dynamic archive for class data sharing. A short run of the engine over tables of its own tells which
classes belong into it. A JVM takes it only where Java and the jars are the same, and starts without it elsewhere.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from include.errors import SetupError, report
from include.local import class_path, environment, install, java
from include.settings import ROOT, Settings, from_environment, settings


def make(where: Settings, java_home: Path) -> None:
    """Make the archive where there is none for these jars, and delete those for others. Raises SetupError."""
    archive = class_path.archive(where, java_home)
    if archive.exists():
        return
    fresh = archive.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as home:
        alone = from_environment({"SLUICE_HOME": home, "SLUICE_JARS": str(where.jars), "SLUICE_EXAMPLES": "off"})
        variables = environment.of_process(environment.write_spark(alone, java_home), java_home)
        variables.pop("SLUICE_CONTROL_URL", None)
        # Which compiler runs leaves no trace in it.
        options = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={fresh} {environment.NO_WARNINGS}"
        command = [str(install.venv() / "bin" / "spark-submit"), "--driver-java-options", options]
        command.append(str(ROOT / "include" / "engine" / "class_data_training.py"))
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode or not fresh.exists():
        raise SetupError(
            f"the archive of classes {archive} could not be made: see what ended it\n{done.stdout[-2000:]}"
        )
    for old in where.jars.glob("classes-*.jsa"):
        old.unlink()
    fresh.rename(archive)


def main() -> None:
    # Whoever waits for streams is not to wait for this.
    os.nice(10)
    make(settings(), java.home())


if __name__ == "__main__":
    report(main)
