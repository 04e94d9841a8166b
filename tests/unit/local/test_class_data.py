"""The archive of classes that shortens the start of drivers."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from include.local import artifacts, environment, java
from include.settings import settings

SHARED = "shared objects file (top)"
CLASSES = ("org.apache.spark.deploy.SparkSubmit", "org.apache.spark.internal.Logging")


@pytest.fixture
def archive():
    path = environment.class_archive(settings(), java.home())
    if not path.exists():
        pytest.skip("there is no archive: make class-data")
    return path


def class_sources(path: str, archive) -> dict[str, str]:
    """The source of each class, in a JVM that starts like a driver."""
    options = environment.NO_WARNINGS
    command = [str(java.home() / "bin" / "java"), "-cp", path, f"-XX:SharedArchiveFile={archive}", *options]
    command += ["-Xlog:class+load=info:stdout", CLASSES[0], "--version"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = [line.partition("] ")[2].split("]")[-1].strip() for line in result.stdout.splitlines()]
    fields = [line.split(" source: ") for line in lines if " source: " in line]
    return {name.split()[-1]: source for name, source in fields}


def test_a_driver_has_sparks_classes_from_the_archive(archive):
    conf = settings().home / "conf" / "spark"
    sources = class_sources(
        f"{environment.driver_class_path(settings())}:{conf}/:{artifacts.pyspark_jars()}/*", archive
    )
    assert [sources[name] for name in CLASSES] == [SHARED] * len(CLASSES)


def test_where_the_jars_are_others_a_driver_starts_without_it(archive, tmp_path):
    # One jar is missing.
    shutil.copytree(settings().jars / "spark", tmp_path / "spark")
    next(iter(sorted((tmp_path / "spark").glob("*.jar")))).unlink()
    other_settings = replace(settings(), jars=tmp_path)
    assert environment.class_archive(other_settings, java.home()).name != archive.name
    sources = class_sources(environment.driver_class_path(other_settings), archive)
    assert sources[CLASSES[0]].startswith("file:") or sources[CLASSES[0]].startswith("jrt:")
