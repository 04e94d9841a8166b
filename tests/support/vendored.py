"""Compares the scripts of other people in the console with npm's packages: make vendored

npm verifies each package by the digest in `package-lock.json`. Without npm or its registry, nothing is compared.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from include.console import answers
from include.errors import SetupError, report

# By vendored file, where its package has it.
SCRIPTS = {"idiomorph.min.js": "idiomorph/dist/idiomorph.min.js"}
INSTALL = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]
TIMEOUT_SECONDS = 300


def main() -> None:
    if shutil.which("npm") is None:
        print("nothing compared: npm is not on PATH")
        return
    with tempfile.TemporaryDirectory() as directory:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(answers.HERE / name, directory)
        installed = subprocess.run(INSTALL, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        if "EINTEGRITY" in installed.stderr:
            raise SetupError(f"a package of npm is not what package-lock.json names: {installed.stderr[-500:]}")
        if installed.returncode:
            print(f"nothing compared: npm installs nothing: {installed.stderr[-500:]}")
            return
        for script, packaged in SCRIPTS.items():
            if (answers.STATIC / script).read_bytes() != Path(directory, "node_modules", packaged).read_bytes():
                raise SetupError(f"{answers.STATIC / script} is not {packaged}: copy that, and its licence, again")
            print(f"{script} is {packaged} of the lock file")


if __name__ == "__main__":
    report(main)
