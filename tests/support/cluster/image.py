"""Builds the image of the Dockerfile, by an engine of its own, and exports it for a cluster without a registry.

Where the base image cannot be pulled, debootstrap makes it from the packages that this machine reaches, with its
certificate authorities.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import checkout
from tests.support.waiting import wait_until

BASE, IMAGE = "debian:bookworm-slim", "docker.io/library/sluice:test"
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
# What slim images leave out of all packages, and their settings of APT, by which it keeps nothing.
SLIM = ("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man")
KEEP_NOTHING = """DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""
AUTHORITIES = Path("/usr/local/share/ca-certificates")
BUILD_SECONDS, EXPORT_SECONDS = 3_600, 900


def missing() -> str:
    """What this machine lacks for the image, in words; empty if nothing."""
    return ", ".join(name for name in ("docker", "dockerd", "debootstrap", "iptables") if not shutil.which(name))


def build(directory: Path, tables: dict[str, str]) -> Path:
    """Returns the archive of the image, with more table files by their paths below `include/tables`.

    directory: of the engine, which keeps its layers for the next time.
    """
    context = directory / "context"
    shutil.rmtree(context, ignore_errors=True)
    checkout.copy_to(context)
    for path, text in tables.items():
        (context / "include" / "tables" / path).write_text(text)
    with _engine(directory) as docker:
        _require_base(directory, docker)
        _run([*docker, "build", "--target", "sluice", "--tag", IMAGE, str(context)], BUILD_SECONDS)
        archive = directory / "image.tar"
        _run([*docker, "save", "--output", str(archive), IMAGE], EXPORT_SECONDS)
    return archive


@contextmanager
def _engine(directory: Path) -> Iterator[list[str]]:
    """Run a Docker engine during the block. Yields the command of its client."""
    socket = directory / "docker.sock"
    limit = {"Name": "nofile", "Hard": 16_384, "Soft": 16_384}
    configuration = {
        "data-root": str(directory / "data"),
        "exec-root": str(directory / "exec"),
        "pidfile": str(directory / "dockerd.pid"),
        "hosts": [f"unix://{socket}"],
        # By default, it asks for more than a container may have.
        "default-ulimits": {"nofile": limit},
    }
    (directory / "daemon.json").write_text(json.dumps(configuration))
    with (directory / "dockerd.log").open("ab") as log:
        command = ["dockerd", "--config-file", str(directory / "daemon.json")]
        engine = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    docker = ["docker", "--host", f"unix://{socket}"]
    try:
        wait_until(lambda: subprocess.run([*docker, "info"], capture_output=True).returncode == 0, 120)
        yield docker
    finally:
        engine.terminate()
        engine.wait(60)


def _require_base(directory: Path, docker: list[str]) -> None:
    if subprocess.run([*docker, "image", "inspect", BASE], capture_output=True).returncode == 0:
        return
    if subprocess.run([*docker, "pull", BASE], capture_output=True, timeout=300).returncode == 0:
        return
    root = directory / "base"
    if not (root / "etc" / "pip.conf").exists():
        shutil.rmtree(root, ignore_errors=True)
        mirror = next(line.split()[1] for line in SOURCES.read_text().splitlines() if line.startswith("URIs:"))
        options = ["--variant=minbase", "--include=ca-certificates", "bookworm"]
        _run(["debootstrap", *options, str(root), mirror], 1_800)
        shutil.copy(SOURCES, root / "etc/apt/sources.list.d")
        (root / "etc/apt/sources.list").write_text("")
        for authority in AUTHORITIES.glob("*.crt"):
            shutil.copy(authority, root / AUTHORITIES.relative_to("/"))
        _run(["chroot", str(root), "env", "TMPDIR=/tmp", "update-ca-certificates"], 120)
        (root / "etc/pip.conf").write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")
        _slim(root)
    archive = directory / "base.tar"
    _run(["tar", "-C", str(root), "-cf", str(archive), "."], 300)
    authorities = "ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"
    _run([*docker, "import", "--change", authorities, str(archive), BASE], 300)
    archive.unlink()


def _slim(root: Path) -> None:
    """Take out what the published image lacks, too, so that sizes are those of an image built on it."""
    for name in SLIM:
        shutil.rmtree(root / name, ignore_errors=True)
    excluded = "".join(f"path-exclude /{name}/*\n" for name in SLIM)
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(excluded)
    (root / "etc/apt/apt.conf.d/slim").write_text(KEEP_NOTHING)
    for name in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
        shutil.rmtree(root / name)
        (root / name).mkdir()


def _run(command: list[str], timeout_seconds: float) -> None:
    variables = {**os.environ, "DOCKER_BUILDKIT": "0"}
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_seconds, env=variables
    )
    assert result.returncode == 0, f"{command[:3]}: {result.stdout[-4_000:]}"
