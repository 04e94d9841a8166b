"""The tasks of the DAG `erase` before Spark starts: they show the erasure, and check its approval."""

from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from include import catalog
from include.airflow.approvals import evaluate_approval
from include.airflow.forms import checked
from include.control.jobs import store
from include.control.jobs.store import PLANNED, StoredJob
from include.control.store import database
from include.erasure import certificate, requests
from include.errors import SluiceError
from include.settings import settings

FORM = {
    "number": Param(
        type="integer", minimum=1, maximum=2**31 - 1, description="of the erasure that `sluice erase` has planned"
    )
}
TABLES = [table.name for table in catalog.load().tables.values() if table.subject]


def plan(form: dict[str, Any]) -> tuple[int, str]:
    """Returns the number of the erasure, and in Markdown what it would do, without a name.

    Raises AirflowFailException if there is no such erasure, and AirflowSkipException if it is over.
    """
    engine = database.connect(settings().control_url)
    try:
        job = store.get(engine, StoredJob, checked(form, FORM)["number"], requests.KIND)
        # Without its file nobody knows whom to erase.
        request = None if job.ended_at else requests.of(job)
    except SluiceError as error:
        raise AirflowFailException(str(error)) from error
    if request is None:
        raise AirflowSkipException(f"{job.id} is over: {job.message}")
    others = certificate.held_by_others(catalog.load())
    readers = requests.registered_readers(engine, catalog.load())
    lines = [
        f"- Erase {len(request.subjects):,} subjects from {', '.join(TABLES)}, their quarantines and views",
        "- Old versions of these tables that hold them cannot be read any more, whatever time travel was promised",
        "- Late copies are left out from then on",
        *(f"- Not erased: {where} keeps what it holds {until}" for where, until in others.items()),
        *(f"- Tell the reader {reader}, which keeps {what}" for reader, what in readers.items()),
        "",
        f"Asked for by {job.who}: {job.reason}. `sluice erase --subject KEY --dry-run` shows the places.",
    ]
    return job.number, "\n".join(lines)


def require_approved(number: int, answer: dict[str, Any] | None) -> None:
    """Raises AirflowSkipException if nobody has approved it, so that the following tasks are skipped."""
    engine = database.connect(settings().control_url)
    job = store.get(engine, StoredJob, number, requests.KIND)
    decision = evaluate_approval(answer, job.who)
    if not decision.is_approved:
        if job.state == PLANNED:
            store.give_up(engine, job, decision.message)
            requests.forget(number)
        raise AirflowSkipException(f"{job.id}: nothing done, {decision.message}")
    store.approve(engine, job, decision.by)
