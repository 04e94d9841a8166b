"""Keeps the streams running: every minute, for a few seconds, compares what is wanted with what is seen.

`reconcile` starts a driver that is missing and leaves at once; the driver lives on by itself. A flow that is not well
is one red task instance with its name; its log says why and what to do. Healthy flows cost nothing.
"""

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

from include import catalog
from include.control import database, supervision
from include.orchestration import launch
from include.settings import settings


@dag(
    schedule="* * * * *",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args={"retries": 0},
    doc_md=__doc__,
    tags=["sluice"],
)
def supervise():
    @task
    def reconcile() -> list[dict[str, str]]:
        engine = database.connect(settings().control_url)
        sick = []
        for driver, tables in catalog.load().drivers().items():
            flows = [table.name for table in tables]
            decision = supervision.settle(engine, driver, flows)
            print(f"driver '{driver}': {decision.state}: {decision.reason}")
            if decision.start:
                process = launch.detached(driver)
                supervision.record_launch(engine, driver, process)
                print(f"driver '{driver}' launched as process {process.pid}, log {launch.log(driver)}")
            if decision.is_sick:
                sick += [{"flow": flow, "reason": f"{decision.state}: {decision.reason}"} for flow in flows]
        return sick

    @task(map_index_template="{{ task.op_kwargs['flow'] }}")
    def sick(flow: str, reason: str) -> None:
        raise AirflowFailException(f"{flow}: {reason}")

    sick.expand_kwargs(reconcile())


supervise()
