"""Builds the archive of the classes that a Spark driver loads: `python -m include.local.class_data`, half a minute.

Java calls this a dynamic archive for class data sharing (CDS). A short run of the engine over its own tables decides
which classes it contains. A JVM uses it only with the same Java and jars, and starts without it otherwise.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from include.errors import SetupError, report
from include.local import environment, install, java
from include.settings import ROOT, Settings, from_environment, settings


def build_archive(config: Settings, java_home: Path) -> None:
    """Build the archive for these jars if it does not exist, and delete older archives. Raises SetupError."""
    archive = environment.class_archive(config, java_home)
    if archive.exists():
        return
    new_archive = archive.with_suffix(".new")
    new_archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as home:
        isolated = from_environment({"SLUICE_HOME": home, "SLUICE_JARS": str(config.jars), "SLUICE_EXAMPLES": "off"})
        variables = environment.process_environment(environment.write_spark(isolated, java_home), java_home)
        variables.pop("SLUICE_CONTROL_URL", None)
        # The choice of the compiler has no effect on the archive.
        archiving = f"-XX:ArchiveClassesAtExit={new_archive}"
        options = environment.java_options(
            ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", archiving, *environment.NO_WARNINGS]
        )
        command = [str(install.venv() / "bin" / "spark-submit"), "--driver-java-options", options]
        command.append(str(ROOT / "include" / "engine" / "stream" / "class_data_training.py"))
        result = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode or not new_archive.exists():
        raise SetupError(
            f"the archive of classes {archive} could not be made: see what ended it\n{result.stdout[-2000:]}"
        )
    for old_archive in config.jars.glob("classes-*.jsa"):
        old_archive.unlink()
    new_archive.rename(archive)


def main() -> None:
    # Starting streams take precedence over this process.
    os.nice(10)
    build_archive(settings(), java.home())


if __name__ == "__main__":
    report(main)
