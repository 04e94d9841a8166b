"""What a task knows of its DAG run."""

from dataclasses import dataclass
from typing import Any, Self

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from include.airflow.table_times import table_of_run


@dataclass(frozen=True)
class Run:
    """form: of the trigger. requester: the user who triggered it; None: a schedule. day: begin and end, of a run of
    `airflow backfill create`. planned: the result of `plan`. answer: of the approver.
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

    @property
    def table(self) -> str:
        """The table that the form or the schedule names. Raises AirflowFailException where neither does."""
        if table := self.form["table"] or table_of_run(self.id):
            return str(table)
        raise AirflowFailException('table is null: name the table, such as -c \'{"table": "silver.orders"}\'')
