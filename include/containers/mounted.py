"""Runs a command with the mounted secrets as variables: python -m include.containers.mounted COMMAND ...

`docker inspect` and the definition of a pod show the variables of a container. So secrets are files there, below
SLUICE_SECRETS: each file `VARIABLE`, or `*/VARIABLE`, is a variable. Any other variable may hold one as ${VARIABLE}.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = re.compile("[A-Z][A-Z0-9_]*")
REFERENCE = re.compile(r"\$\{(\w+)\}")


def main() -> None:
    os.environ.update(variables(os.environ))
    os.execvp(sys.argv[1], sys.argv[1:])


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The mounted secrets, and the variables of this environment that hold one."""
    directory = environment.get("SLUICE_SECRETS")
    secrets = read(Path(directory)) if directory else {}

    def value(reference: re.Match[str]) -> str:
        return secrets.get(reference[1], reference[0])

    complete = {name: REFERENCE.sub(value, text) for name, text in environment.items()}
    return secrets | {name: text for name, text in complete.items() if text != environment[name]}


def read(directory: Path) -> dict[str, str]:
    """The secrets by the names of their files. A final line end is no part of one, and one that is empty is not set."""
    files = [file for pattern in ("*", "*/*") for file in sorted(directory.glob(pattern))]
    found = {file.name: file.read_text() for file in files if VARIABLE.fullmatch(file.name) and file.is_file()}
    return {name: text.removesuffix("\n") for name, text in found.items() if text}


if __name__ == "__main__":
    main()
