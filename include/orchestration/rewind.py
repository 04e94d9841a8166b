"""What the DAG `rewind` does before Spark starts: the plan, and whether a person approved it."""

from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from include import catalog
from include.control.jobs import approvals, rewinds
from include.control.store import database
from include.errors import SluiceError
from include.orchestration.tasks import verdict
from include.recovery import rewind_plan
from include.settings import settings

TABLES = [name for name, table in catalog.load().tables.items() if not table.is_view]
FORM = {
    "table": Param(type="string", enum=TABLES, description="the table to put back, with all below it"),
    "to": Param(type="string", minLength=1, description="ISO 8601, such as 2026-03-01T12:00:00Z; UTC without a zone"),
    "reason": Param(type="string", minLength=1, description="for whoever reads the audit"),
}


def plan(form: dict[str, Any], who: str | None) -> tuple[int, str]:
    """The number under which it is kept, and what it would do, in Markdown.

    Raises AirflowFailException where it is refused, and AirflowSkipException where nothing is to be undone.
    """
    tables, engine = catalog.load(), database.connect(settings().control_url)
    try:
        found = rewind_plan.plan(engine, tables.table(form["table"]), tables, form["to"])
    except SluiceError as error:
        raise AirflowFailException(str(error)) from error
    print("\n".join(found.lines()))
    if found.refusals:
        raise AirflowFailException(f"{found.table} is not put back to {form['to']}: {'; '.join(found.refusals)}")
    if not found.steps:
        raise AirflowSkipException(found.lines()[0])
    moment = found.moment.isoformat()
    asked = rewinds.plan(engine, found.table, moment, found.cut, found.views, who or "unknown", form["reason"])
    lines = [f"- {line.strip()}" for line in found.lines()]
    return asked.number, "\n".join([*lines, "", f"Asked for by {asked.who}: {asked.reason}"])


def require_approval(number: int, answer: dict[str, Any] | None) -> None:
    """answer: of whoever was asked. Raises AirflowSkipException, so that nothing follows, where it is none."""
    engine = database.connect(settings().control_url)
    asked = rewinds.get(engine, number)
    found = verdict(answer, asked.who)
    if not found.is_approved:
        if not asked.is_begun and asked.ended_at is None:
            rewinds.give_up(engine, asked, found.said)
        raise AirflowSkipException(f"rewind {number}: nothing done, {found.said}")
    approvals.approve(engine, asked, found.by)
