"""The board, what is wrong and the tables, as one file that needs no server, for a ticket or an archive."""

from typing import Any

from sqlalchemy import Engine

from include.console import answers, pages, runbooks, table_page
from include.console.readings import Readings
from include.console.viewer import Viewer


def as_html(engine: Engine) -> str:
    """Raises Unreachable."""
    readings = Readings(lambda: engine)
    values: dict[str, Any] = {**pages.board(readings, {}), "troubles": readings.look().troubles}
    found = {trouble.runbook: runbooks.as_html(trouble.runbook) for trouble in readings.look().troubles}
    return answers.html(
        "report.html",
        **values,
        runbooks=found,
        tables=table_page.tables(readings, {})["tables"],
        viewer=Viewer("", may_press=False),
        css=(answers.STATIC / "console.css").read_text(),
    )
