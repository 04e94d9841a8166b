"""The class path of a Spark driver, and the archive of its classes that the JVM maps instead of parsing jars."""

import hashlib
from pathlib import Path

from include.local import artifacts
from include.settings import Settings


def of_driver(where: Settings) -> str:
    """What stands before Spark's own: a directory of settings, and nothing behind that can be in the archive."""
    return ":".join([*(f"{directory}/*" for directory in _archived(where)), f"{where.jars}/s3/*"])


def archive(where: Settings, java_home: Path) -> Path:
    """Where the archive for these jars and this Java lies, made or not."""
    jars = [jar for directory in _archived(where) for jar in sorted(directory.glob("*.jar"))]
    known = [str(java_home.resolve()), *(f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars)]
    return where.jars / f"classes-{hashlib.sha256(chr(10).join(known).encode()).hexdigest()[:12]}.jsa"


def _archived(where: Settings) -> list[Path]:
    return [where.jars / "spark", artifacts.pyspark_jars()]
