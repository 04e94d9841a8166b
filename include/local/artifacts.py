"""The JVM artifacts of `artifacts.txt`, fetched by the Ivy that PySpark ships, one directory for each class path."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from include.errors import SetupError, report
from include.local import install, java
from include.settings import settings

LIST = Path(__file__).with_name("artifacts.txt")
CLASS_PATHS = ("broker", "spark")

# Without POMs Ivy asks for the jars alone: 5 seconds for all of them instead of 2 minutes.
IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
IVY_MODULE = """<ivy-module version="2.0">
  <info organisation="sluice" module="{class_path}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
IVY_DEPENDENCY = '    <dependency org="{group}" name="{name}" rev="{version}" conf="default" transitive="false"/>'


@dataclass(frozen=True)
class Artifact:
    class_path: str
    group: str
    name: str
    version: str
    sha256: str

    @property
    def jar(self) -> str:
        return f"{self.name}-{self.version}.jar"


def wanted() -> list[Artifact]:
    """The list."""
    lines = (line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    artifacts = []
    for class_path, coordinates, sha256 in lines:
        group, name, version = coordinates.split(":")
        artifacts.append(Artifact(class_path, group, name, version, sha256))
    return artifacts


def pyspark_jars() -> Path:
    """The directory of the jars that PySpark ships."""
    found = importlib.util.find_spec("pyspark")
    if not found or not found.origin:
        raise SetupError("pyspark is not installed in this Python: run `make setup`, and use its virtual environment")
    return Path(found.origin).parent / "jars"


def missing(jars: Path, class_paths: Iterable[str] = CLASS_PATHS) -> list[str]:
    """Those whose directory does not hold exactly the jars of the list."""
    expected = {path: {artifact.jar for artifact in wanted() if artifact.class_path == path} for path in class_paths}
    return [path for path, names in expected.items() if {jar.name for jar in (jars / path).glob("*.jar")} != names]


def fetch(jars: Path, java_home: Path, work: Path, class_paths: Iterable[str] = CLASS_PATHS) -> None:
    """Fill `jars/<class path>` where it is not as the list says. `work` keeps Ivy's cache. Raises SetupError."""
    # Next to its destination, so that the last step is a rename: a directory is complete or not there.
    fresh = {path: jars / f"{path}.new" for path in missing(jars, class_paths)}
    running = {path: _start_ivy(path, java_home, work / path, fresh[path]) for path in fresh}
    for path, ivy in running.items():
        if ivy.wait():
            reason = "\n".join((work / path / "ivy.log").read_text().splitlines()[-15:])
            raise SetupError(
                f"the jars of {LIST.name} for '{path}' could not be fetched: "
                f"check the network, then try again\n{reason}"
            )
        _verify(path, fresh[path], remedy=f"delete {work / path} and try again")
        shutil.rmtree(jars / path, ignore_errors=True)
        fresh[path].rename(jars / path)


def _start_ivy(class_path: str, java_home: Path, work: Path, into: Path) -> subprocess.Popen[bytes]:
    # A cache for each class path, because two Ivy processes must not share one.
    shutil.rmtree(into, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    dependencies = [IVY_DEPENDENCY.format(**vars(item)) for item in wanted() if item.class_path == class_path]
    (work / "ivysettings.xml").write_text(IVY_SETTINGS.format(cache=work / "cache"))
    (work / "ivy.xml").write_text(IVY_MODULE.format(class_path=class_path, dependencies="\n".join(dependencies)))
    ivy = next(pyspark_jars().glob("ivy-*.jar"))
    command = [str(java_home / "bin" / "java"), "-Xmx128m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-jar", str(ivy)]
    command += ["-settings", "ivysettings.xml", "-ivy", "ivy.xml", "-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    with (work / "ivy.log").open("w") as log:
        return subprocess.Popen(command, cwd=work, stdout=log, stderr=subprocess.STDOUT)


def _verify(class_path: str, directory: Path, remedy: str) -> None:
    for artifact in wanted():
        if artifact.class_path != class_path:
            continue
        jar = directory / artifact.jar
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != artifact.sha256:
            raise SetupError(
                f"{jar} has SHA-256 {found}, and {LIST.name} says {artifact.sha256}: "
                f"{remedy}; if it stays so, do not trust where your jars come from"
            )


def main() -> None:
    where = settings()
    install.require_disk(where.home, 10**9)
    fetch(where.jars, java.home(), install.cache() / "ivy", (*CLASS_PATHS, *sys.argv[1:]))


if __name__ == "__main__":
    report(main)
