"""The tasks of the DAGs `full_refresh.<table>` before Spark starts: the plan, and the check of the approval."""

from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import Engine

from include import catalog
from include.control import commands
from include.control.store import database
from include.errors import DeclarationError, UsageError
from include.orchestration.tasks import evaluate_approval
from include.recovery.backfills import preview
from include.settings import settings
from include.validation import slices

ACTION = "full refresh"
FORM = {
    "reason": Param(type="string", minLength=1, description="for whoever approves it, and whoever reads the audit"),
    "alone": Param(False, type="boolean", description="leave the tables below as they are: they are STALE then"),
    "dry_run": Param(False, type="boolean", description="say what would be done, and do nothing"),
}


def plan(name: str, form: dict[str, Any]) -> str:
    """Returns in Markdown what will be done.

    Raises AirflowFailException if the table cannot be refreshed, AirflowSkipException with `dry_run`, and Unreachable.
    """
    tables = catalog.load()
    try:
        table = tables.current_definition(name)
        range_ = slices.parse_slice(table, None, None, as_a_whole=True)
        if not settings().is_stored(name):
            raise UsageError(f"{name} is not stored yet: start its flow, and nothing is to be made")
        lines = list(preview(table, tables, range_, form["alone"]))
    except (UsageError, DeclarationError) as error:
        raise AirflowFailException(str(error)) from error
    print("\n".join(lines))
    if form["dry_run"]:
        raise AirflowSkipException("it was only to say what would be done")
    return "\n".join(f"{'  ' * line.startswith('  ')}- {line.strip()}" for line in lines) + f"\n\nWhy: {form['reason']}"


def arguments(
    name: str, form: dict[str, Any], requester: str | None, answer: dict[str, Any] | None, run_id: str, engine: Engine
) -> list[str]:
    """The arguments of the job. requester: the user who triggered the run. answer: of the approver.

    Raises AirflowSkipException if nobody has approved it, so that the following tasks are skipped.
    """
    decision = evaluate_approval(answer, requester)
    result = f"is begun, {decision.message}" if decision.is_approved else f"nothing done, {decision.message}"
    with database.transaction(engine) as connection:
        commands.audit(connection, requester or "unknown", ACTION, name, form["reason"], result)
    if not decision.is_approved:
        raise AirflowSkipException(f"{name}: {result}")
    return ["--table", name, "--full", *["--alone"] * form["alone"], "--run", run_id]
