"""A bounded Spark job runs where the connection says: by spark-submit, or by the REST API of a standalone cluster."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from include.airflow import tasks
from include.airflow.launchers import launch
from include.airflow.launchers.kubernetes import Kubernetes
from include.airflow.launchers.standalone import Standalone
from include.airflow.launchers.submit import Local
from include.airflow.launchers.yarn import Yarn
from tests.conftest import ROOT


@dataclass(frozen=True)
class Cluster(Standalone):
    """A standalone cluster that answers each question for the state of a job by the next of `states`."""

    states: list[str | None] = field(default_factory=list)
    submitted: list[tuple[Path, list[str], str]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    def submit(self, job: Path, arguments: list[str], name: str) -> str:
        self.submitted.append((job, arguments, name))
        return json.dumps({"submission": "driver-7", "rest": self.rest})

    def state(self, handle: str) -> str | None:
        return self.states.pop(0)

    def kill(self, handle: str) -> None:
        self.killed.append(handle)

    def log(self, driver: str, handle: str) -> str:
        return "driver-7/stderr"


@dataclass(frozen=True)
class Pods(Kubernetes):
    """A Kubernetes that answers each question for the state of a job by the next of `states`."""

    states: list[str | None] = field(default_factory=list)
    submitted: list[tuple[Path, list[str], str]] = field(default_factory=list)

    def submit(self, job: Path, arguments: list[str], name: str) -> str:
        self.submitted.append((job, arguments, name))
        return json.dumps({"pod": "sluice-backfill-7", "namespace": "streams", "master": self.master})

    def state(self, handle: str) -> str | None:
        return self.states.pop(0)


@pytest.fixture
def job(monkeypatch) -> tasks.SparkJobOperator:
    monkeypatch.setattr(tasks, "POLL_SECONDS", 0)
    return tasks.job("job", "backfill", ["--table", "silver.events", "--from", ""], "backfill silver.events")


def test_a_job_on_a_standalone_cluster_is_waited_for(job, monkeypatch):
    cluster = Cluster("spark://m:7077", "http://m:6066", states=[None, None, "FINISHED"])
    monkeypatch.setattr(launch, "launcher", lambda: cluster)
    job.execute({})
    assert cluster.submitted == [
        (ROOT / "jobs" / "backfill.py", ["--table", "silver.events", "--from", ""], "backfill silver.events")
    ]
    assert cluster.states == []


@pytest.mark.parametrize("state", ["FAILED", "KILLED", "ERROR"])
def test_a_job_that_fails_on_its_cluster_fails_its_task_and_names_its_output(job, monkeypatch, state: str):
    cluster = Cluster("spark://m:7077", "http://m:6066", states=[None, state])
    monkeypatch.setattr(launch, "launcher", lambda: cluster)
    with pytest.raises(AirflowException, match=f"the job is {state}: read driver-7/stderr"):
        job.execute({})


@pytest.mark.parametrize("state", ["FAILED", "LOST"])
def test_a_job_on_kubernetes_is_a_pod_that_is_waited_for(job, monkeypatch, state: str):
    pods = Pods("k8s://https://m", states=[None, "FINISHED", None, state])
    monkeypatch.setattr(launch, "launcher", lambda: pods)
    job.execute({})
    assert pods.submitted == [
        (ROOT / "jobs" / "backfill.py", ["--table", "silver.events", "--from", ""], "backfill silver.events")
    ]
    with pytest.raises(AirflowException, match=f"the job is {state}: read kubectl logs -n streams sluice-backfill-7"):
        job.execute({})
    assert pods.states == []


def test_a_job_on_yarn_is_an_application_that_is_waited_for(job, monkeypatch):
    @dataclass(frozen=True)
    class Applications(Yarn):
        states: list[str | None] = field(default_factory=list)

        def submit(self, job: Path, arguments: list[str], name: str) -> str:
            return json.dumps({"tag": "sluice-backfill-7", "resource_manager": self.resource_manager})

        def state(self, handle: str) -> str | None:
            return self.states.pop(0)

    yarn = Applications("http://m:8088", states=[None, "FINISHED", "KILLED"])
    monkeypatch.setattr(launch, "launcher", lambda: yarn)
    job.execute({})
    with pytest.raises(AirflowException, match="the job is KILLED: read yarn logs of the application .*backfill-7"):
        job.execute({})
    assert yarn.states == []


def test_a_task_that_is_killed_kills_its_job(job, monkeypatch):
    cluster = Cluster("spark://m:7077", "http://m:6066", states=["FINISHED"])
    monkeypatch.setattr(launch, "launcher", lambda: cluster)
    job.execute({})
    job.on_kill()
    assert [json.loads(handle)["submission"] for handle in cluster.killed] == ["driver-7"]


def test_elsewhere_it_is_the_spark_submit_of_the_provider(job, monkeypatch):
    ran = []
    monkeypatch.setattr(launch, "launcher", lambda: Local("local[*]"))
    monkeypatch.setattr(SparkSubmitOperator, "execute", lambda self, context: ran.append(self.application))
    job.execute({})
    assert ran == [str(ROOT / "jobs" / "backfill.py")]
