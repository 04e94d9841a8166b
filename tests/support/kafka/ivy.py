"""Fetches what only tests need, by the Ivy that PySpark ships."""

import subprocess
from pathlib import Path

from include.local import artifacts, install, java


def fetch(name: str, module: str) -> Path:
    """Returns a directory with the artifacts of an Ivy module, each as `[artifact].[ext]`. module: its `ivy.xml`."""
    work = install.cache() / "ivy" / name
    work.mkdir(parents=True, exist_ok=True)
    (work / "ivysettings.xml").write_text(artifacts.IVY_SETTINGS.format(cache=work / "cache"))
    (work / "ivy.xml").write_text(module)
    ivy = next(artifacts.pyspark_jars().glob("ivy-*.jar"))
    command = [str(java.home() / "bin" / "java"), "-jar", str(ivy), "-settings", "ivysettings.xml", "-ivy", "ivy.xml"]
    subprocess.run([*command, "-retrieve", f"{work}/[artifact].[ext]"], cwd=work, check=True, capture_output=True)
    return work
