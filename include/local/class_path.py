"""The class path of a Spark driver, and its class archive, which the JVM maps instead of parsing jars."""

import hashlib
from pathlib import Path

from include.local import artifacts
from include.settings import Settings


def driver_class_path(config: Settings) -> str:
    """The class path in front of Spark's own, which begins with the configuration directory.

    Class data sharing does not use jars behind a directory, so all archived jars come first.
    """
    return ":".join([*(f"{directory}/*" for directory in _archived_directories(config)), f"{config.jars}/s3/*"])


def archive(config: Settings, java_home: Path) -> Path:
    """The path of the archive for these jars and this Java, whether it exists or not."""
    jars = [jar for directory in _archived_directories(config) for jar in sorted(directory.glob("*.jar"))]
    inputs = [str(java_home.resolve()), *(f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars)]
    return config.jars / f"classes-{hashlib.sha256(chr(10).join(inputs).encode()).hexdigest()[:12]}.jsa"


def _archived_directories(config: Settings) -> list[Path]:
    return [config.jars / "spark", artifacts.pyspark_jars()]
