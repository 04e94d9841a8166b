"""Installs the virtual environment from `requirements.lock` or, with --dev, from the larger `requirements-dev.lock`.

Runs on a bare Python 3.11, before any package is installed, so it imports only the standard library.
"""

# An older Python must be able to parse this file, and to print the sentence that asks for a newer version.
from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from include.errors import SetupError, report
from include.local import home
from include.progress import Progress
from include.settings import ROOT, settings

LOCK, DEV_LOCK = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
DISK_NEEDED_BYTES = 5 * 10**9
# PySpark is a source archive. Compressing its 450 MB of jars into a wheel takes longer than all other packages.
FAST_BUILD = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
# What the calling shell sets goes before what `make up` wrote down, and `up` itself takes only the former.
COMMAND = """#!/bin/sh
# Written by include/local/install.py.
if [ -z "$SLUICE_HOME" ]; then SLUICE_HOME={home}; fi
if [ -z "$SLUICE_VENV" ]; then SLUICE_VENV={venv}; fi
export SLUICE_HOME SLUICE_VENV
if [ "$1" != up ] && [ -f "$SLUICE_HOME/env.sh" ]; then
    set_by_caller=$(export -p)
    . "$SLUICE_HOME/env.sh"
    eval "$set_by_caller"
fi
export PYTHONPATH={root}
exec "$SLUICE_VENV/bin/python" -P -m include.cli "$@"
"""
# uv reads neither pip's variables nor its configuration files, but must use the same mirror.
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}


def venv() -> Path:
    """The path of the virtual environment: `SLUICE_VENV`, by default `venv` in the home directory."""
    return Path(os.environ.get("SLUICE_VENV") or settings().home / "venv").absolute()


def cache() -> Path:
    """The directory of downloads: `SLUICE_CACHE`, by default `cache` in the home directory."""
    return Path(os.environ.get("SLUICE_CACHE") or settings().home / "cache").absolute()


def command() -> Path:
    """The path of the command `sluice`: beside Python, unless that lies outside the home and may serve other homes."""
    home_directory = settings().home
    return (venv() if venv().is_relative_to(home_directory) else home_directory) / "bin" / "sluice"


def command_words() -> str:
    """The command `sluice` as a shell in the current directory takes it."""
    path = command()
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def write_command() -> None:
    """Write the command, which knows this checkout and this home, whatever directory it is called in."""
    paths = {"home": settings().home, "venv": venv(), "root": ROOT}
    text = COMMAND.format(**{name: shlex.quote(str(path)) for name, path in paths.items()})
    command().parent.mkdir(parents=True, exist_ok=True)
    command().write_text(text)
    command().chmod(0o755)


def require_disk(directory: Path, needed_bytes: int) -> None:
    """Raises SetupError if the disk of the directory has less free space."""
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise SetupError(
            f"SLUICE_HOME is {directory}, whose disk has {free / 1e9:.1f} GB left and needs "
            f"{needed_bytes / 1e9:.0f} GB: free some, or set SLUICE_HOME to a directory on a larger disk"
        )


def install(lock: Path) -> None:
    """Make the virtual environment match the lock, unless it does so already. Raises SetupError."""
    marker = venv() / "installed-lock.sha256"
    lock_hash = _hash(lock)
    # The development lock contains all packages of the other lock.
    if marker.exists() and marker.read_text() in (lock_hash, _hash(DEV_LOCK)):
        return
    if sys.version_info[:2] != (3, 11):
        raise SetupError(
            f"this Python is {sys.version.split()[0]} and Sluice needs 3.11: install it, then make PYTHON=python3.11 up"
        )
    home.create(settings().home)
    require_disk(settings().home, DISK_NEEDED_BYTES)
    print(f"installing {lock.name} into {venv()}: half a minute, twice that on a slow line", flush=True)
    _run(sys.executable, "-m", "venv", str(venv()), remedy="install the package python3.11-venv of your system")
    _install_uv()
    _run(
        *(str(venv() / "bin" / "uv"), "pip", "sync", "--quiet", "--require-hashes", *FAST_BUILD, str(lock)),
        remedy="see its reason above; a second `make up` goes on from here",
        environment={"UV_CACHE_DIR": str(cache() / "uv"), **_mirror(), **os.environ, "VIRTUAL_ENV": str(venv())},
    )
    marker.write_text(lock_hash)
    write_command()


def _hash(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def _install_uv() -> None:
    """Install uv from the lock, with hashes. It installs the other packages in a third of pip's time."""
    lines = LOCK.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("uv=="))
    end = next(number for number in range(begin + 1, len(lines)) if not lines[number].startswith("    --hash"))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as uv_lock:
        uv_lock.write("\n".join(lines[begin:end]) + "\n")
        uv_lock.flush()
        command = (str(venv() / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes")
        _run(*command, "-r", uv_lock.name, remedy="see pip's reason above; a mirror goes into PIP_INDEX_URL")


def _mirror() -> dict[str, str]:
    """The package indexes of pip's configuration, as variables of uv."""
    command = [str(venv() / "bin" / "python"), "-m", "pip", "config", "list"]
    variables = {}
    for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines():
        key, _, value = line.partition("=")
        name = UV_NAMES.get(key.rpartition(".")[2])
        if name:
            variables[name] = " ".join(shlex.split(value)).replace("\n", " ")
    return variables


def _run(*command: str, remedy: str, environment: dict[str, str] | None = None) -> None:
    began_at = time.monotonic()
    process = subprocess.Popen(command, env=environment)
    with Progress(sys.stdout) as progress:
        while process.poll() is None:
            progress.show(f"{Path(command[0]).name} is at work, {time.monotonic() - began_at:.0f} s")
            time.sleep(0.1)
    if process.returncode:
        raise SetupError(f"`{shlex.join(command)}` ended with code {process.returncode}: {remedy}")


if __name__ == "__main__":
    report(partial(install, DEV_LOCK if "--dev" in sys.argv[1:] else LOCK))
