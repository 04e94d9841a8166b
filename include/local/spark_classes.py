"""Compiles the Java classes of this project into a jar, by the compiler that PySpark ships for its generated code."""

import hashlib
import subprocess
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from include.errors import SetupError
from include.settings import ROOT

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
