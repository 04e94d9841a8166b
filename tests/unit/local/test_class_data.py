"""The archive of classes that makes drivers start sooner."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from include.local import artifacts, class_path, environment, java
from include.settings import settings

SHARED = "shared objects file (top)"
CLASSES = ("org.apache.spark.deploy.SparkSubmit", "org.apache.spark.internal.Logging")


@pytest.fixture
def archive():
    found = class_path.archive(settings(), java.home())
    if not found.exists():
        pytest.skip("there is no archive: make class-data")
    return found


def loaded(class_path_: str, archive) -> dict[str, str]:
    """By class, where a JVM that starts like a driver has it from."""
    options = environment.NO_WARNINGS.split()
    command = [str(java.home() / "bin" / "java"), "-cp", class_path_, f"-XX:SharedArchiveFile={archive}", *options]
    command += ["-Xlog:class+load=info:stdout", CLASSES[0], "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = [line.partition("] ")[2].split("]")[-1].strip() for line in done.stdout.splitlines()]
    found = [line.split(" source: ") for line in lines if " source: " in line]
    return {name.split()[-1]: source for name, source in found}


def test_a_driver_has_sparks_classes_from_the_archive(archive):
    conf = settings().home / "conf" / "spark"
    found = loaded(f"{class_path.driver_class_path(settings())}:{conf}/:{artifacts.pyspark_jars()}/*", archive)
    assert [found[name] for name in CLASSES] == [SHARED] * len(CLASSES)


def test_where_the_jars_are_others_a_driver_starts_without_it(archive, tmp_path):
    # One jar less.
    shutil.copytree(settings().jars / "spark", tmp_path / "spark")
    next(iter(sorted((tmp_path / "spark").glob("*.jar")))).unlink()
    other = replace(settings(), jars=tmp_path)
    assert class_path.archive(other, java.home()).name != archive.name
    found = loaded(class_path.driver_class_path(other), archive)
    assert found[CLASSES[0]].startswith("file:") or found[CLASSES[0]].startswith("jrt:")
