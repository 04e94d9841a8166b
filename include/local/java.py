"""The Java that runs Spark and the broker: found, or installed where this user may."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from include.errors import SetupError

# Spark 4.2 needs 17, and the module jdk.incubator.vector, which only the system's own packages bring.
OLDEST = 17
DEBIAN_PACKAGE = "openjdk-17-jre-headless"
INSTALLED = "/usr/lib/jvm"


def home() -> Path:
    """The Java home to use. Raises SetupError where there is no Java from 17 on and none can be installed."""
    chosen = os.environ.get("JAVA_HOME")
    if chosen:
        java = Path(chosen) / "bin" / "java"
        if version(java) < OLDEST:
            raise SetupError(
                f"JAVA_HOME is {chosen}, which holds {_words(java)} and Spark needs {OLDEST} or later: "
                "set it to a newer one, or unset it"
            )
        return Path(chosen)
    java = _find() or _install()
    return java.resolve().parent.parent


def version(java: Path) -> int:
    """Its major version; 0 where there is none."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found.group(1)) if found else 0


def _find() -> Path | None:
    on_path = shutil.which("java")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted(Path(INSTALLED).glob("*/bin/java"))
    return next((java for java in candidates if version(java) >= OLDEST), None)


def _install() -> Path:
    on_path = shutil.which("java")
    problem = f"java is {_words(Path(on_path))}" if on_path else "java is missing"
    apt = shutil.which("apt-get")
    if not apt or os.geteuid() != 0:
        raise SetupError(
            f"{problem} and Spark needs {OLDEST} or later: install it, for example with "
            f"`sudo apt-get install -y {DEBIAN_PACKAGE}` or `brew install openjdk@17`, then `make up` again"
        )
    print(f"{problem}; installing {DEBIAN_PACKAGE}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", DEBIAN_PACKAGE]):
        done = subprocess.run([apt, *step], env=quiet, capture_output=True, text=True, check=False)
    java = _find()
    if not java:
        raise SetupError(
            f"{problem}, and installing {DEBIAN_PACKAGE} failed ({(done.stdout + done.stderr).strip()[-300:]}): "
            f"install Java {OLDEST} by hand, then `make up` again"
        )
    return java


def _words(java: Path) -> str:
    found = version(java)
    return f"Java {found}" if found else "no Java that runs"
