"""The command that writes the report."""

from pathlib import Path
from typing import Annotated

import typer

from include.console import report
from include.control.store import database
from include.settings import settings

DEFAULT = Path("sluice-report.html")


def write(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")] = DEFAULT,
) -> None:
    """Write the board, what is wrong and the tables into one HTML file, from the newest snapshot."""
    output.write_text(report.as_html(database.connect(settings().control_url)))
    print(output)
