"""Builds the documentation as a site below the home, without the network: make docs

Zensical reads a copy of the pages, to which the reference is added that code writes. Diagrams become SVG.
"""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import reference_pages

from include.errors import SetupError, report
from include.settings import ROOT, settings

PAGES = ROOT / "docs"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLOT = re.compile(r"^!\[[^\]]*\]\((\S+\.svg)\)$", re.MULTILINE)
# Text of SVG has no line breaks of its own, so the widths that the renderer assumes need not be exact.
DIAGRAM_OPTIONS = """%%{init: {"look": "classic", "htmlLabels": false, "flowchart": {"htmlLabels": false},
"theme": "neutral", "themeVariables": {"fontFamily": "Arial, Liberation Sans, sans-serif", "fontSize": "15px"}}}%%\n"""
# Search reads its index in a worker, which no browser starts for a file. Zensical loads a substitute from the network.
WORKER, OUR_WORKER = "https://unpkg.com/iframe-worker/shim", "iframe-worker.js"


def main() -> None:
    site = settings().home / "site"
    print(build(site) / "index.html")


def build(site: Path) -> Path:
    """Returns the directory of the built pages. Raises SetupError for a page that Zensical warns of."""
    shutil.rmtree(site, ignore_errors=True)
    copy = site / "pages"
    shutil.copytree(PAGES, copy, ignore=shutil.ignore_patterns("*.py", "*.toml", "__pycache__"))
    for path, text in reference_pages.pages().items():
        (copy / path).parent.mkdir(exist_ok=True)
        (copy / path).write_text(text)
    for page in copy.rglob("*.md"):
        page.write_text(with_plots(with_diagrams(page.read_text(), page.stem), page.parent))
    shutil.copy(PAGES / "zensical.toml", site)
    run_zensical(site)
    for built in (site / "html").rglob("*.html"):
        ours = f"{'../' * (len(built.relative_to(site / 'html').parts) - 1)}{OUR_WORKER}"
        built.write_text(built.read_text().replace(WORKER, ours))
    return site / "html"


def run_zensical(site: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "zensical.toml"]
    result = subprocess.run(command, cwd=site, capture_output=True, text=True)
    if result.returncode != 0:
        without_colours = re.sub(r"\x1b\[[\d;]*m", "", (result.stdout + result.stderr).partition("Traceback")[0])
        raise SetupError(f"a page of docs/ is wrong, correct what Zensical names:\n{without_colours}")


def with_diagrams(text: str, name: str) -> str:
    """The text, with an SVG in the place of each diagram."""
    numbers = iter(range(1, 100))
    return DIAGRAM.sub(lambda match: svg(match[1], f"{name}-{next(numbers)}"), text)


def with_plots(text: str, folder: Path) -> str:
    """The text, with the SVG in the place of each image of one: an image does not take the colours of its page."""
    return PLOT.sub(lambda match: f'<div class="plot">{(folder / match[1]).read_text().strip()}</div>', text)


def svg(diagram: str, identity: str) -> str:
    options = f'{{"svg": {{"diagram_id": "{identity}", "pipeline": "readable"}}}}'
    drawn: str = renderer().render_svg(DIAGRAM_OPTIONS + diagram, options)
    return f'<div class="diagram">{drawn}</div>'


def renderer() -> Any:
    try:
        return importlib.import_module("merman").Merman()
    except ImportError as error:
        raise SetupError(
            f"merman draws the diagrams, and is not installed ({error}): run make dev on x86-64"
        ) from error


if __name__ == "__main__":
    report(main)
