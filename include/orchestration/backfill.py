"""The task `plan` of the DAGs `backfill.<table>`: the range, and what its backfill would do."""

from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from include import catalog
from include.errors import DeclarationError, UsageError
from include.orchestration import in_driver
from include.recovery.backfills import preview
from include.settings import settings
from include.validation import slices

MOMENT = "ISO 8601, such as 2026-03-01 or 2026-03-01T12:00:00+01:00; UTC where it names no zone"
FORM = {
    "from": Param(None, type=["null", "string"], description=f"where the range begins: {MOMENT}"),
    "to": Param(None, type=["null", "string"], description="before which it ends"),
    "where": in_driver.WHERE_PARAM,
    "dry_run": Param(False, type="boolean", description="say what would be done, and do nothing"),
}


def plan(name: str, form: dict[str, Any], day: tuple[str, str] | None) -> dict[str, str]:
    """Returns the range as the job takes it, and prints what will be done.

    form: of the trigger. day: of a run of `airflow backfill create`. Raises AirflowFailException if that range of the
    table cannot be recomputed, and AirflowSkipException with `dry_run`.
    """
    tables = catalog.load()
    try:
        table = tables.current_definition(name)
        begin, end = day if day and table.sliced_by else (form["from"], form["to"])
        range_ = slices.parse_slice(table, begin, end)
        if not settings().is_stored(name):
            raise UsageError(f"{name} is not stored yet: start its flow, and nothing is to be made")
    except (UsageError, DeclarationError) as error:
        raise AirflowFailException(str(error)) from error
    print("\n".join(preview(table, tables, range_)))
    if form["dry_run"]:
        raise AirflowSkipException("it was only to say what would be done")
    return {"from": begin or "", "to": end or ""}
