"""The documentation builds as a site without the network, every page is found, and no link is dead.

The pages name tests of examples such as `silver.tracker_readings`, so `make remove-examples` deletes this file with
them.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest

from include import rules, spec
from include.cli.main import NAMES
from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS) for page in DOCS.rglob("*.md"))
LONGEST = 150
# What a browser loads by itself, by its attribute.
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """The anchors of a built page, what it links to and what it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loads = {""}, list[str](), list[str]()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.loads.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built pages. No warning of Zensical leaves the exit code 0."""
    home = tmp_path_factory.mktemp("docs")
    environment = os.environ | {"SLUICE_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(DOCS / "build_site.py")]
    result = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    index = Path(result.stdout.strip())
    assert index.is_relative_to(home)
    return index.parent


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    return {file.relative_to(site): Page(file) for file in site.rglob("*.html") if file.name != "404.html"}


def in_navigation(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for below in part.values() if isinstance(part, dict) else part:
            yield from in_navigation(below)


def test_every_page_is_in_the_navigation_once(site: Path):
    pages = site.parent / "pages"
    navigation = tomllib.loads((DOCS / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(in_navigation(navigation)) == sorted(str(page.relative_to(pages)) for page in pages.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_is_short(page: Path):
    assert len((DOCS / page).read_text().splitlines()) <= LONGEST


def test_every_page_begins_with_the_question_of_its_reader(site: Path):
    begins = re.compile(r"# [^\n]+\n\n\*[^*]+\?\*")
    pages = (site.parent / "pages").rglob("*.md")
    assert [page for page in pages if not begins.match(page.read_text())] == []


def test_no_link_of_the_site_is_dead(site: Path, built: dict[Path, Page]):
    dead = []
    for path, page in built.items():
        for link in (link for link in page.links if not re.match(r"\w+:", link)):
            target, _, anchor = unquote(link).partition("#")
            file = Path(os.path.normpath(path.parent / target)) if target else path
            if not (site / file).exists() or (file in built and anchor not in built[file].anchors):
                dead.append(f"{path}: {link}")
    assert sum(len(page.links) for page in built.values()) > 1_000
    assert dead == []


def test_no_link_of_the_readme_is_dead(built: dict[Path, Page]):
    links = re.findall(r"\]\(([^)#:]+)#?([^)]*)\)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    assert [link for link, _ in links if not (ROOT / link).exists()] == []
    pages = [(Path(link).relative_to("docs").with_suffix(".html"), anchor) for link, anchor in links if ".md" in link]
    assert [(page, anchor) for page, anchor in pages if anchor not in built[page].anchors] == []


def test_every_page_that_code_or_a_page_names_exists():
    folders = ("include", "dags", "jobs", "plugins", "benchmarks", "tests", "docs")
    files = [
        file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".java", ".md")
    ]
    files += [ROOT / name for name in ("README.md", "Makefile", "docker-compose.yaml", ".env.example")]
    named = {(file, name) for file in files for name in re.findall(r"\bdocs/[\w/.-]+\.md\b", file.read_text())}
    assert len(named) > 20
    assert sorted(f"{file}: {name}" for file, name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_file_that_a_page_names_exists(page: Path):
    files = re.findall(r"`((?:tests|docs|include|dags|jobs|benchmarks)/[\w/]+\.\w+)`", (DOCS / page).read_text())
    yours = re.compile(r"include/tables/|tests/tables/test_")
    assert [file for file in files if not (ROOT / file).exists() and not yours.match(file)] == []


DECLARATION = re.compile(r"```python\n((?:(?!```).)*^(?:TABLE|source|expect|write) = .*?)```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", sorted((DOCS / "guides").glob("*.md")), ids=lambda page: page.stem)
def test_the_declarations_of_a_guide_are_python_that_a_table_file_may_hold(page: Path):
    for code in DECLARATION.findall(page.read_text()):
        exec(code, {**vars(rules), **vars(spec)})


def test_every_public_name_of_a_table_file_has_an_entry(built: dict[Path, Page]):
    names = {name for name, value in vars(spec).items() if name[0] != "_" and not isinstance(value, ModuleType)}
    # The catalog makes flows, and layers are folders. No table file names either.
    names -= {"Flow", "LAYERS"}
    pages = ("tables", "sources", "parsers", "writes", "rules")
    anchors = [anchor for page in pages for anchor in built[Path(f"reference/{page}.html")].anchors]
    assert len(names) > 40
    assert [name for name in sorted(names) if anchors.count(name.lower()) != 1] == []


def test_every_command_of_sluice_has_an_entry(built: dict[Path, Page]):
    assert len(NAMES) > 20
    assert set(NAMES) - built[Path("reference/commands.html")].anchors == set()


def test_every_setting_has_an_entry(site: Path):
    read = set(re.findall(r'"(SLUICE_[A-Z0-9_]+)"', (ROOT / "include" / "settings.py").read_text()))
    assert len(read) > 15
    headings = re.findall(r"^## (.+)$", (site.parent / "pages/reference/settings.md").read_text(), re.MULTILINE)
    assert read - {name for heading in headings for name in heading.split(", ")} == set()


def test_every_option_of_the_reference_has_a_meaning(site: Path):
    pages = [site.parent / "pages" / "reference" / f"{page}.md" for page in ("tables", "sources", "parsers", "writes")]
    rows = [row for page in pages for row in page.read_text().splitlines() if row.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_site_loads_nothing_from_the_network(site: Path, built: dict[Path, Page]):
    loaded = {address for page in built.values() for address in page.loads}
    assert any(address.endswith(".css") for address in loaded)
    assert [address for address in sorted(loaded) if re.match(r"(\w+:)?//", address)] == []
    styles = [file.read_text() for file in site.rglob("*.css")]
    assert [match for style in styles for match in re.findall(r"(?:url\(|@import )[\"']?(?:\w+:)?//[^)]*", style)] == []
    # Zensical would load Mermaid for this class.
    assert [path for path in built if 'class="mermaid"' in (site / path).read_text()] == []


def test_every_diagram_is_drawn(site: Path, built: dict[Path, Page]):
    diagrams = sum((DOCS / page).read_text().count("\n```mermaid\n") for page in PAGES)
    assert diagrams > 8
    assert sum((site / path).read_text().count('<div class="diagram"><svg ') for path in built) == diagrams
