"""TLC, the model checker of TLA+, on the models of docs/protocol. `make protocol` runs it at length."""

import subprocess
import sys
import tempfile

from include.errors import report
from include.local import java
from include.settings import ROOT, settings

FOLDER = ROOT / "docs" / "protocol"


def command(model: str, config: str, directory: str, heap: str) -> list[str]:
    """The command that checks a model. directory: for the states that do not fit into memory."""
    options = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={directory}"]
    checker = [str(java.home() / "bin" / "java"), *options, "-cp", f"{settings().jars}/tlc/*", "tlc2.TLC"]
    return [*checker, "-nowarning", "-workers", "1", "-metadir", directory, "-config", config, model]


def check(model: str, config: str) -> str:
    """Returns what TLC says of a model that it checks in seconds."""
    with tempfile.TemporaryDirectory() as directory:
        result = subprocess.run(command(model, config, directory, "1g"), cwd=FOLDER, capture_output=True, text=True)
    return result.stdout + result.stderr


def main() -> None:
    [config] = sys.argv[1:] or ["LeaseLong.cfg"]
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(subprocess.run(command("Lease", config, directory, "6g"), cwd=FOLDER).returncode)


if __name__ == "__main__":
    report(main)
