"""The tasks of the DAG `rewind` before Spark starts: the plan, and the check of the approval."""

from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from include import catalog
from include.control.jobs import approvals, rewinds
from include.control.store import database
from include.errors import SluiceError
from include.orchestration.tasks import evaluate_approval
from include.recovery import rewind_plan
from include.settings import settings

TABLES = [name for name, table in catalog.load().tables.items() if not table.is_view]
FORM = {
    "table": Param(type="string", enum=TABLES, description="the table to put back, with all below it"),
    "to": Param(type="string", minLength=1, description="ISO 8601, such as 2026-03-01T12:00:00Z; UTC without a zone"),
    "reason": Param(type="string", minLength=1, description="for whoever reads the audit"),
}


def plan(form: dict[str, Any], requester: str | None) -> tuple[int, str]:
    """Returns the number of the stored rewind, and in Markdown what it would do.

    Raises AirflowFailException if it is refused, and AirflowSkipException if nothing has to be undone.
    """
    tables, engine = catalog.load(), database.connect(settings().control_url)
    try:
        draft = rewind_plan.plan(engine, tables.table(form["table"]), tables, form["to"])
    except SluiceError as error:
        raise AirflowFailException(str(error)) from error
    print("\n".join(draft.lines()))
    if draft.refusals:
        raise AirflowFailException(f"{draft.table} is not put back to {form['to']}: {'; '.join(draft.refusals)}")
    if not draft.steps:
        raise AirflowSkipException(draft.lines()[0])
    moment = draft.moment.isoformat()
    stored = rewinds.plan(engine, draft.table, moment, draft.cut, draft.views, requester or "unknown", form["reason"])
    lines = [f"- {line.strip()}" for line in draft.lines()]
    return stored.number, "\n".join([*lines, "", f"Asked for by {stored.who}: {stored.reason}"])


def require_approval(number: int, answer: dict[str, Any] | None) -> None:
    """Raises AirflowSkipException if nobody has approved it, so that the following tasks are skipped."""
    engine = database.connect(settings().control_url)
    stored = rewinds.get(engine, number)
    decision = evaluate_approval(answer, stored.who)
    if not decision.is_approved:
        if not stored.is_begun and stored.ended_at is None:
            rewinds.give_up(engine, stored, decision.message)
        raise AirflowSkipException(f"rewind {number}: nothing done, {decision.message}")
    approvals.approve(engine, stored, decision.by)
