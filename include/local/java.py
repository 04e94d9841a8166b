"""Finds the Java for Spark and the broker, or installs it if this user is root on Debian or Ubuntu."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from include.errors import SetupError

# Spark 4.2 needs Java 17 and the module jdk.incubator.vector, which only packages of the system contain.
OLDEST = 17
DEBIAN_PACKAGE = "openjdk-17-jre-headless"
INSTALLED = "/usr/lib/jvm"


def home() -> Path:
    """The Java home. Raises SetupError if there is no Java 17 or later and none can be installed."""
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        java = Path(java_home) / "bin" / "java"
        if version(java) < OLDEST:
            raise SetupError(
                f"JAVA_HOME is {java_home}, which holds {_describe(java)} and Spark needs {OLDEST} or later: "
                "set it to a newer one, or unset it"
            )
        return Path(java_home)
    java = _find() or _install()
    return java.resolve().parent.parent


def version(java: Path) -> int:
    """The major version of a `java` executable; 0 if it does not run."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else 0


def _find() -> Path | None:
    on_path = shutil.which("java")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted(Path(INSTALLED).glob("*/bin/java"))
    return next((java for java in candidates if version(java) >= OLDEST), None)


def _install() -> Path:
    on_path = shutil.which("java")
    problem = f"java is {_describe(Path(on_path))}" if on_path else "java is missing"
    apt = shutil.which("apt-get")
    if not apt or os.geteuid() != 0:
        raise SetupError(
            f"{problem} and Spark needs {OLDEST} or later: install it, for example with "
            f"`sudo apt-get install -y {DEBIAN_PACKAGE}` or `brew install openjdk@17`, then `make up` again"
        )
    print(f"{problem}; installing {DEBIAN_PACKAGE}", flush=True)
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", DEBIAN_PACKAGE]):
        result = subprocess.run([apt, *step], env=variables, capture_output=True, text=True, check=False)
    java = _find()
    if not java:
        raise SetupError(
            f"{problem}, and installing {DEBIAN_PACKAGE} failed ({(result.stdout + result.stderr).strip()[-300:]}): "
            f"install Java {OLDEST} by hand, then `make up` again"
        )
    return java


def _describe(java: Path) -> str:
    major = version(java)
    return f"Java {major}" if major else "no Java that runs"
