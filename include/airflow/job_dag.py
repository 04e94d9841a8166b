"""The DAG of a job: plan -> approve -> check -> job, or plan -> in_driver -> job -> verify. No kind has them all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

from airflow.sdk import Context, chain, dag, task
from sqlalchemy import Engine

from include.airflow import assets, dags, tasks
from include.airflow.in_driver import InDriver
from include.spec import Table

# The key under which `plan` leaves its preview for whoever approves the job.
PREVIEW = "preview"


@dataclass(frozen=True)
class Run:
    """What a task knows of its DAG run. form: of the trigger. requester: the user who triggered it; None: a schedule.
    day: begin and end, of a run of `airflow backfill create`. planned: the result of `plan`. answer: of the approver.
    """

    id: str
    form: dict[str, Any]
    requester: str | None
    day: tuple[str, str] | None
    planned: Any
    answer: dict[str, Any] | None

    @classmethod
    def of(cls, context: Context) -> Self:
        run, results = context["dag_run"], context["ti"]
        day = None
        if run.run_type == "backfill":
            begin, end = context["data_interval_start"], context["data_interval_end"]
            assert begin and end, "its timetable gives each run a day"
            day = begin.isoformat(), end.isoformat()
        return cls(
            context["run_id"],
            dict(context["params"]),
            run.triggering_user_name,
            day,
            results.xcom_pull(task_ids="plan"),
            results.xcom_pull(task_ids="approve"),
        )


@dataclass(frozen=True)
class SparkJob:
    """One spark-submit of `jobs/<module>.py`. arguments: None, where `check` returns them. Others: see `tasks.job`."""

    task_id: str
    module: str
    arguments: list[str] | None = None
    retries: int = 0
    first: Callable[[Context], None] | None = None


@dataclass(frozen=True)
class Driver:
    """How the driver of the table's flow is asked to do the job, before a spark-submit. See `InDriver`."""

    kind: str
    ask: Callable[[Engine, Table, Any, str], int | str]


def job_dag(
    docstring: str,
    verb: str,
    table: Table | None,
    job: SparkJob,
    *,
    example: str = "",
    plan: Callable[[Run], Any] | None = None,
    preview: Callable[[Run], tuple[Any, str]] | None = None,
    question: str = "",
    check: Callable[[Run], list[str] | None] | None = None,
    driver: Driver | None = None,
    verify: Callable[[Run], None] | None = None,
    default_args: dict[str, Any] | None = None,
    **dag_args: Any,
) -> None:
    """Declare the DAG `<verb>.<table>`, or `<verb>`, which runs once at a time unless `dag_args` says otherwise.

    example: the table of the documentation, where the DAG has none. plan: returns what the job needs, or None if there
    is nothing to do. preview: plans a job that a person has to approve, and returns in Markdown, too, what it would do.
    question: to that person. check: raises AirflowSkipException if the job may not begin. verify: also after a failed
    job.
    """
    name = table.name if table else example

    def declare() -> None:
        steps: list[Any] = [_task("plan", plan)] if plan else []
        if preview and check:
            body = f"{{{{ ti.xcom_pull('plan', key='{PREVIEW}') }}}}"
            steps = [_preview_task(preview), tasks.approval(question, body), _task("check", check)]
        post_execute = _announce(table.name) if table else assets.announce_of_form
        arguments = steps[-1] if job.arguments is None else job.arguments
        if driver:
            done_task = "verify" if verify else None
            steps.append(_in_driver_task(driver, name, job, done_task, post_execute))
        subject = f"{verb} {table.name}" if table else verb
        spark_job = tasks.job(
            job.task_id, job.module, arguments, subject, job.retries, job.first, post_execute=post_execute
        )
        chain(*steps, spark_job)
        if verify:
            [steps[-1], spark_job] >> _task("verify", verify, trigger_rule="all_done")

    dag(
        dag_id=f"{verb.replace(' ', '_')}.{name}" if table else verb,
        description=dags.description(docstring, name),
        doc_md=dags.documentation(docstring, name),
        default_args={"owner": dags.owner(table) if table else dags.OWNER, **(default_args or {})},
        tags=dags.tags(verb, table) if table else [verb, "sluice"],
        is_paused_upon_creation=False,
        **{"schedule": None, "catchup": False, "max_active_runs": 1} | dag_args,
    )(declare)()


def _in_driver_task(driver: Driver, table: str, job: SparkJob, done_task: str | None, post_execute: Any) -> InDriver:
    return InDriver(
        task_id="in_driver",
        table=table,
        kind=driver.kind,
        ask=driver.ask,
        fallback_task=job.task_id,
        done_task=done_task,
        post_execute=post_execute,
        on_success_callback=assets.record,
        retries=job.retries,
        retry_delay=tasks.RETRY_DELAY,
    )


def _announce(table: str) -> Callable[[Context, Any], None]:
    return lambda context, _result: assets.announce(context, [table])


def _task(task_id: str, function: Callable[[Run], Any], **task_args: Any) -> Any:
    @task(task_id=task_id, **task_args)
    def run(**context: Any) -> Any:
        return function(Run.of(cast(Context, context)))

    return run()


def _preview_task(preview: Callable[[Run], tuple[Any, str]]) -> Any:
    @task(task_id="plan")
    def run(**context: Any) -> Any:
        planned, markdown = preview(Run.of(cast(Context, context)))
        context["ti"].xcom_push(PREVIEW, markdown)
        return planned

    return run()
