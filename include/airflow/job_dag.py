"""The DAG of a job: plan -> approve -> check -> job, or plan -> in_driver -> job -> verify. No kind has them all.

One DAG serves all tables: its form names the table. Docs: docs/decisions/one-dag-a-verb.md.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from airflow.sdk import Context, Param, chain, dag, task
from sqlalchemy import Engine

from include.airflow import assets, dags, tasks
from include.airflow.in_driver import InDriver
from include.airflow.run import Run
from include.airflow.table_times import TableTimes
from include.settings import settings
from include.spec import Table

# The key under which `plan` leaves its preview for whoever approves the job.
PREVIEW = "preview"
# Of a DAG of one table, as earlier releases had them.
EARLIER_NOTE = " Deprecated: trigger {verb} and name the table (SLUICE_DAG_PER_TABLE=off removes this DAG)."


@dataclass(frozen=True)
class SparkJob:
    """One spark-submit of `jobs/<module>.py`. arguments: None, where `check` returns them. first: may skip the job.
    retries: see `tasks.job`.
    """

    task_id: str
    module: str
    arguments: Callable[[Run], list[str]] | None = None
    retries: int = 0
    first: Callable[[Run], None] | None = None


@dataclass(frozen=True)
class Driver:
    """How the driver of the table's flow is asked to do the job, before a spark-submit. See `InDriver`."""

    kind: str
    ask: Callable[[Engine, Table, str, Any, str], int | str]


@dataclass(frozen=True)
class Steps:
    """The tasks of a DAG. plan: returns what the job needs, or None if there is nothing to do. preview: plans a job
    that a person has to approve, and returns in Markdown, too, what it would do. question: to that person. check:
    raises AirflowSkipException if the job may not begin. verify: also after a failed job.
    """

    job: SparkJob
    plan: Callable[[Run], Any] | None = None
    preview: Callable[[Run], tuple[Any, str]] | None = None
    question: str = ""
    check: Callable[[Run], list[str] | None] | None = None
    driver: Driver | None = None
    verify: Callable[[Run], None] | None = None

    def declare(self, verb: str) -> None:
        """Declare the tasks, inside a DAG."""
        job, steps = self.job, [_task("plan", self.plan)] if self.plan else []
        if self.preview and self.check:
            body = f"{{{{ ti.xcom_pull('plan', key='{PREVIEW}') }}}}"
            steps = [_preview_task(self.preview), tasks.approval(self.question, body), _task("check", self.check)]
        arguments = steps[-1] if job.arguments is None else []
        if self.driver:
            steps.append(self._in_driver(self.driver))
        spark_job = tasks.job(job.task_id, job.module, arguments, verb, job.retries, _before(verb, job))
        chain(*steps, spark_job)
        if self.verify:
            [steps[-1], spark_job] >> _task("verify", self.verify, trigger_rule="all_done")

    def _in_driver(self, driver: Driver) -> InDriver:
        return InDriver(
            task_id="in_driver",
            kind=driver.kind,
            ask=driver.ask,
            fallback_task=self.job.task_id,
            done_task="verify" if self.verify else None,
            post_execute=assets.announce_of_run,
            on_success_callback=assets.record,
            retries=self.job.retries,
            retry_delay=tasks.RETRY_DELAY,
        )


def job_dags(
    docstring: str,
    verb: str,
    tables: Iterable[Table],
    steps: Steps,
    *,
    params: Mapping[str, Param] | None = None,
    crons: Mapping[str, str] | None = None,
    own_schedules: Mapping[str, Any] | None = None,
    earlier_schedule: Any = None,
    **dag_args: Any,
) -> None:
    """Declare the DAG `<verb>`, whose form names one of these tables, and if set, `dag_per_table` also those of earlier
    releases.

    crons: by table, when a run of it begins by itself. own_schedules: of tables that need a DAG of their own for it.
    earlier_schedule: of the DAGs of earlier releases.
    """
    declared = list(tables)
    if not declared:
        return
    names, form = [table.name for table in declared], dict(params or {})
    # With a timetable, Airflow takes no form that has to be filled in.
    named = Param(type="string", enum=names, description="the table")
    optional = Param(None, type=["null", "string"], enum=[None, *names], description="the table")
    job_dag(
        docstring,
        verb,
        steps,
        dags.example(names),
        params={"table": optional if crons else named, **form},
        schedule=TableTimes(crons) if crons else None,
        max_active_runs=dags.MOST_RUNS,
        **dag_args,
    )
    own = own_schedules or {}
    for table in declared:
        if table.name in own or settings().dag_per_table:
            schedule = own.get(table.name, earlier_schedule)
            params = {"table": Param(table.name, type="string", enum=[table.name]), **form}
            note = "" if table.name in own else EARLIER_NOTE.format(verb=verb)
            job_dag(
                docstring, verb, steps, table.name, table=table, note=note, params=params, schedule=schedule, **dag_args
            )


def job_dag(
    docstring: str,
    verb: str,
    steps: Steps,
    example: str,
    *,
    table: Table | None = None,
    note: str = "",
    default_args: dict[str, Any] | None = None,
    **dag_args: Any,
) -> None:
    """Declare the DAG `<verb>`, or `<verb>.<table>`, which runs once at a time unless `dag_args` says otherwise.

    example: the table of the documentation. note: what its description ends with.
    """
    dag(
        dag_id=f"{verb}.{table.name}" if table else verb,
        description=dags.description(docstring, example if table else "a table") + note,
        doc_md=dags.documentation(docstring, example),
        default_args={"owner": dags.owner(table) if table else dags.OWNER, **(default_args or {})},
        tags=dags.tags(verb.replace("_", " "), table) if table else [verb.replace("_", " "), "sluice"],
        is_paused_upon_creation=False,
        **{"schedule": None, "catchup": False, "max_active_runs": 1} | dag_args,
    )(lambda: steps.declare(verb))()


def _before(verb: str, job: SparkJob) -> Callable[[Context], None]:
    def prepare(context: Context) -> None:
        run, spark_job = Run.of(context), cast(Any, context["task"])
        if job.first:
            job.first(run)
        # The form of an erasure names a job, because the job has several tables.
        spark_job.name = f"sluice {verb} {run.table if 'table' in run.form else run.planned}"
        if job.arguments:
            spark_job.application_args = job.arguments(run)

    return prepare


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
