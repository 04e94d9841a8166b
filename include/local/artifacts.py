"""Fetches the JVM artifacts of `artifacts.txt` with the Ivy that PySpark ships, a directory for each class path.

It compiles the Java classes of this project into a jar, by the compiler that PySpark ships for its generated code.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from include.errors import SetupError, report
from include.local import home, install, java
from include.progress import Progress, counted
from include.settings import ROOT, settings

SOURCES = tuple(sorted((ROOT / "include" / "engine" / "s3").glob("*.java")))
COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"


def jar() -> str:
    """The name of the jar, which is another one for other sources or another Spark."""
    inputs = [version("pyspark").encode(), *(source.read_bytes() for source in SOURCES)]
    return f"sluice-{hashlib.sha256(b''.join(inputs)).hexdigest()[:12]}.jar"


def compile_into(directory: Path, java_home: Path, spark_jars: Path, others: Path) -> None:
    """Compile the classes: 3 seconds. others: directory of more jars that they need, as `directory`.

    Raises SetupError.
    """
    # The compiler does not know wildcards in the class path of what it compiles.
    needed = [file for jars in (spark_jars, others, directory) for file in sorted(jars.glob("*.jar"))]
    class_path = ":".join(map(str, needed))
    java = str(java_home / "bin" / "java")
    with tempfile.TemporaryDirectory() as folder:
        options = ["-cp", f"{spark_jars}/*", COMPILER, "-classpath", class_path, "-d", folder]
        command = [java, "-XX:+UseSerialGC", "-XX:-UsePerfData", *options, *map(str, SOURCES)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        classes = sorted(Path(folder).rglob("*.class"))
        if result.returncode or not classes:
            raise SetupError(
                f"the classes of Sluice could not be compiled by {java}: set JAVA_HOME to Java 17 or later\n"
                f"{(result.stdout + result.stderr)[-2000:]}"
            )
        with zipfile.ZipFile(directory / jar(), "w") as archive:
            for file in classes:
                archive.write(file, str(file.relative_to(folder)))


LIST = Path(__file__).with_name("artifacts.txt")
CLASS_PATHS = ("broker", "spark")
# The class path that also holds the classes of this project.
WITH_OWN_CLASSES = "s3"

# Without POMs, Ivy requests only the jars: 5 seconds for all of them instead of 2 minutes.
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


def listed_artifacts() -> list[Artifact]:
    """The artifacts of `artifacts.txt`."""
    lines = (line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    artifacts = []
    for class_path, coordinates, sha256 in lines:
        group, name, version = coordinates.split(":")
        artifacts.append(Artifact(class_path, group, name, version, sha256))
    return artifacts


def pyspark_jars() -> Path:
    """The directory of the jars that PySpark ships."""
    spec = importlib.util.find_spec("pyspark")
    if not spec or not spec.origin:
        raise SetupError("pyspark is not installed in this Python: run `make setup`, and use its virtual environment")
    return Path(spec.origin).parent / "jars"


def missing(jars: Path, class_paths: Iterable[str] = CLASS_PATHS) -> list[str]:
    """The class paths whose directory does not hold exactly the jars of the list."""
    expected = {
        path: {artifact.jar for artifact in listed_artifacts() if artifact.class_path == path} for path in class_paths
    }
    if WITH_OWN_CLASSES in expected:
        expected[WITH_OWN_CLASSES].add(jar())
    return [path for path, names in expected.items() if {jar.name for jar in (jars / path).glob("*.jar")} != names]


def fetch(
    jars: Path,
    java_home: Path,
    work: Path,
    class_paths: Iterable[str] = CLASS_PATHS,
    show: Callable[[str], None] = lambda words: None,
) -> None:
    """Download each missing class path into `jars/<class path>`. work: holds Ivy's cache. show: gets how far it is.

    Raises SetupError.
    """
    # The last step is a rename, so a directory is either complete or missing.
    new_directories = {path: jars / f"{path}.new" for path in missing(jars, class_paths)}
    processes = {path: _start_ivy(path, java_home, work / path, new_directories[path]) for path in new_directories}
    for path, ivy in processes.items():
        while ivy.poll() is None:
            show(_how_far(work, processes))
            time.sleep(0.2)
        if ivy.returncode:
            reason = "\n".join((work / path / "ivy.log").read_text().splitlines()[-15:])
            raise SetupError(
                f"the jars of {LIST.name} for '{path}' could not be fetched: "
                f"check the network, then try again\n{reason}"
            )
        _verify(path, new_directories[path], remedy=f"delete {work / path} and try again")
        if path == WITH_OWN_CLASSES:
            compile_into(new_directories[path], java_home, pyspark_jars(), jars / "spark")
        shutil.rmtree(jars / path, ignore_errors=True)
        new_directories[path].rename(jars / path)


def _how_far(work: Path, class_paths: Iterable[str]) -> str:
    """How many of the jars lie in Ivy's cache."""
    expected = {(artifact.class_path, artifact.jar) for artifact in listed_artifacts()}
    expected = {(path, jar) for path, jar in expected if path in class_paths}
    fetched = {(path, jar.name) for path in class_paths for jar in (work / path / "cache").rglob("*.jar")}
    return counted(len(expected & fetched), len(expected), "jars are fetched")


def _start_ivy(class_path: str, java_home: Path, work: Path, target: Path) -> subprocess.Popen[bytes]:
    # Two Ivy processes must not share a cache.
    shutil.rmtree(target, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    dependencies = [
        IVY_DEPENDENCY.format(**vars(artifact)) for artifact in listed_artifacts() if artifact.class_path == class_path
    ]
    (work / "ivysettings.xml").write_text(IVY_SETTINGS.format(cache=work / "cache"))
    (work / "ivy.xml").write_text(IVY_MODULE.format(class_path=class_path, dependencies="\n".join(dependencies)))
    ivy = next(pyspark_jars().glob("ivy-*.jar"))
    command = [str(java_home / "bin" / "java"), "-Xmx128m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-jar", str(ivy)]
    command += ["-settings", "ivysettings.xml", "-ivy", "ivy.xml", "-retrieve", f"{target}/[artifact]-[revision].[ext]"]
    with (work / "ivy.log").open("w") as log:
        return subprocess.Popen(command, cwd=work, stdout=log, stderr=subprocess.STDOUT)


def _verify(class_path: str, directory: Path, remedy: str) -> None:
    for artifact in listed_artifacts():
        if artifact.class_path != class_path:
            continue
        jar = directory / artifact.jar
        digest = hashlib.sha256(jar.read_bytes()).hexdigest()
        if digest != artifact.sha256:
            raise SetupError(
                f"{jar} has SHA-256 {digest}, and {LIST.name} says {artifact.sha256}: "
                f"{remedy}; if it stays so, do not trust where your jars come from"
            )


def main() -> None:
    config = settings()
    home.create(config.home)
    install.require_disk(config.home, 10**9)
    with Progress(sys.stderr) as progress:
        fetch(config.jars, java.home(), install.cache() / "ivy", (*CLASS_PATHS, *sys.argv[1:]), progress.show)


if __name__ == "__main__":
    report(main)
