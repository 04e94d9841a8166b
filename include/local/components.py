"""What Sluice is made of and did not write: packages of the lock, JARs, vendored JavaScript, each with its digest.

The digests are those that an installation is checked against: of the lock, of `artifacts.txt`, and of the notice beside
a vendored file.
"""

import base64
import hashlib
import re
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from include.errors import SetupError
from include.local import artifacts, install
from include.settings import ROOT

LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")
LOCK_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
JAR = re.compile(r"(.+?)-(\d.*)\.jar")
# What follows a version in the name of a JAR: a platform, or a variant of the same code.
CLASSIFIER = re.compile(r"-(?:linux|osx|windows|shaded|jdk\d|core).*")
POM = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")
# The notice of a vendored file begins with: name, version, file, digest.
NOTICE = re.compile(r"(\S+) (\S+), file \S+, sha512-(\S+)")
# JARs of PySpark that do not say their group.
GROUPS = {
    "RoaringBitmap": "org.roaringbitmap",
    "algebra": "org.typelevel",
    "arpack": "net.sourceforge.f2j",
    "breeze": "org.scalanlp",
    "cats": "org.typelevel",
    "chill": "com.twitter",
    "derby": "org.apache.derby",
    "hadoop": "org.apache.hadoop",
    "ivy": "org.apache.ivy",
    "jackson-module-scala": "com.fasterxml.jackson.module",
    "jdo-api": "javax.jdo",
    "json4s": "org.json4s",
    "jsr305": "com.google.code.findbugs",
    "jta": "javax.transaction",
    "libfb303": "org.apache.thrift",
    "libthrift": "org.apache.thrift",
    "objenesis": "org.objenesis",
    "oro": "oro",
    "rocksdbjni": "org.rocksdb",
    "scala-library": "org.scala-lang",
    "scala-reflect": "org.scala-lang",
    "scala-": "org.scala-lang.modules",
    "snappy-java": "org.xerial.snappy",
    "spire": "org.typelevel",
    "stax-api": "stax",
    "tink": "com.google.crypto.tink",
    "transaction-api": "javax.transaction",
    "xz": "org.tukaani",
    "zstd-jni": "com.github.luben",
}
# What the begin of a text of a licence has, or its address.
LICENCES = {
    "Apache License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "apache.org/licenses/LICENSE-2": "Apache-2.0",
    "Apache-2": "Apache-2.0",
    "licenses/MIT": "MIT",
    "The MIT": "MIT",
    "epl-2.0": "EPL-2.0",
    "MIT License": "MIT",
    "BSD 3": "BSD-3-Clause",
    "3-Clause BSD": "BSD-3-Clause",
    "BSD License": "BSD",
    "Zero-Clause BSD": "0BSD",
    "Mozilla Public License": "MPL-2.0",
    "Eclipse Public License - v 2": "EPL-2.0",
    "Eclipse Public License": "EPL",
    "Permission is hereby granted, free of charge": "MIT",
}


@dataclass(frozen=True)
class Component:
    """kind: pypi, maven or npm, as in a package URL. group: of Maven, else empty. digests: of the files that may be
    installed, in hex. licence: as it says itself; empty if it does not. place: where it came from.
    """

    kind: str
    group: str
    name: str
    version: str
    algorithm: str
    digests: tuple[str, ...]
    licence: str
    place: str

    @property
    def purl(self) -> str:
        """Its package URL."""
        group = f"{self.group}/" if self.group else ""
        return f"pkg:{self.kind}/{group}{self.name}@{self.version}"


def all_components(jars: Path) -> list[Component]:
    """Returns all components, each once. jars: the directory of the JVM artifacts.

    Raises SetupError for a file whose digest is not the pinned one.
    """
    found = [*_packages(install.LOCK), *_pyspark_jars(), *_artifacts(jars), *_vendored()]
    merged: dict[str, Component] = {}
    for component in found:
        # One version may have a JAR for each platform.
        known = merged.get(component.purl, component)
        digests = tuple(dict.fromkeys((*known.digests, *component.digests)))
        merged[component.purl] = replace(known, digests=digests, licence=known.licence or component.licence)
    return [merged[purl] for purl in sorted(merged)]


def _packages(lock: Path) -> Iterator[Component]:
    entries = re.split(r"\n(?=\S)", lock.read_text())
    for entry in entries:
        if match := LOCKED.match(entry):
            name = re.sub(r"[-_.]+", "-", match[1]).lower()
            digests = tuple(LOCK_HASH.findall(entry))
            if not digests:
                raise SetupError(f"{lock.name} has no digest of {match[1]}: run `make lock`")
            yield Component("pypi", "", name, match[2], "SHA-256", digests, _licence_of_package(name), lock.name)


def _licence_of_package(name: str) -> str:
    """Returns the licence as the installed package states it."""
    try:
        stated = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    if "License-Expression" in stated:
        return str(stated["License-Expression"])
    classifiers = [text.rpartition(" :: ")[2] for text in stated.get_all("Classifier") or () if "License ::" in text]
    text = classifiers[0] if classifiers else "".join(stated.get_all("License") or ())
    return _known(text) or text.strip().partition("\n")[0]


def _pyspark_jars() -> Iterator[Component]:
    """Yields the JARs inside of PySpark, whose archive the lock pins."""
    for jar in sorted(artifacts.pyspark_jars().glob("*.jar")):
        digest = hashlib.sha256(jar.read_bytes()).hexdigest()
        group, name, version = _coordinates(jar)
        yield Component("maven", group, name, version, "SHA-256", (digest,), _licence_of_jar(jar), "pyspark")


def _artifacts(jars: Path) -> Iterator[Component]:
    for artifact in artifacts.listed_artifacts():
        jar = jars / artifact.class_path / artifact.jar
        if jar.exists() and (digest := hashlib.sha256(jar.read_bytes()).hexdigest()) != artifact.sha256:
            raise SetupError(
                f"{jar} has SHA-256 {digest}, and {artifacts.LIST.name} says {artifact.sha256}: delete it, run `make "
                f"setup`, and find out who changed it"
            )
        licence = _licence_of_jar(jar) if jar.exists() else ""
        names = (artifact.group, artifact.name, artifact.version)
        yield Component("maven", *names, "SHA-256", (artifact.sha256,), licence, artifact.class_path)


def _vendored() -> Iterator[Component]:
    for notice in sorted((ROOT / "include" / "console" / "static").glob("*.LICENSE")):
        file, text = notice.with_suffix(""), notice.read_text()
        match = NOTICE.match(text)
        if not match:
            raise SetupError(f"{notice.name} does not begin with name, version, file and digest: write them")
        digest = hashlib.sha512(file.read_bytes()).digest()
        if base64.b64encode(digest).decode() != match[3]:
            raise SetupError(f"{file.name} is not the file that {notice.name} names: take it from its package again")
        licence = _known(text.partition("\n")[2].strip())
        yield Component("npm", "", match[1], match[2], "SHA-512", (digest.hex(),), licence, str(file.relative_to(ROOT)))


def _coordinates(jar: Path) -> tuple[str, str, str]:
    """Returns group, name and version: as the JAR says, or else by its name."""
    with zipfile.ZipFile(jar) as archive:
        stated = [path.split("/")[2:4] for path in archive.namelist() if POM.fullmatch(path)]
    # A JAR may have others within it.
    own = [(group, name) for group, name in stated if re.match(rf"{re.escape(name)}-\d", jar.name)]
    if own:
        group, name = max(own, key=lambda pair: len(pair[1]))
        version = jar.stem.removeprefix(f"{name}-")
    else:
        match = JAR.fullmatch(jar.name)
        name, version = (match[1], match[2]) if match else (jar.stem, "")
        group = next((group for start, group in GROUPS.items() if name.startswith(start)), "")
    return group, name, CLASSIFIER.sub("", version)


def _licence_of_jar(jar: Path) -> str:
    with zipfile.ZipFile(jar) as archive:
        names = archive.namelist()
        for path in (path for path in names if path.startswith("META-INF/maven/") and path.endswith("/pom.xml")):
            with suppress(ElementTree.ParseError):
                root = ElementTree.fromstring(archive.read(path))
                stated = [element.text or "" for element in root.iterfind("{*}licenses/{*}license/{*}name")]
                if stated:
                    return _known(stated[0]) or stated[0].strip()
        texts = [path for path in names if re.fullmatch(r"META-INF/MANIFEST\.MF|(?:META-INF/)?LICENSE(?:\.\w+)?", path)]
        found = (_known(archive.read(path).decode(errors="replace")) for path in texts)
        return next(filter(None, found), "")


def _known(text: str) -> str:
    """Returns the SPDX name of a licence by what its text begins with; empty if it is none of those."""
    if "Bundle-License: " in text:
        # Java wraps lines of a manifest behind 72 bytes.
        text = text.replace("\r", "").replace("\n ", "").partition("Bundle-License: ")[2].partition("\n")[0]
    elif text.startswith("Manifest-Version"):
        return ""
    begin = " ".join(text.split())[:400].lower()
    return next((name for start, name in LICENCES.items() if start.lower() in begin), "")


def by_kind(components: Iterable[Component]) -> dict[str, int]:
    """Counts the components of each kind."""
    counts: dict[str, int] = {}
    for component in components:
        counts[component.kind] = counts.get(component.kind, 0) + 1
    return counts
