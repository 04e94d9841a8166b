"""A driver on this machine: it starts in a session of its own, and ends with its child processes."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from include.airflow.launchers import submit
from include.airflow.launchers.submit import Local
from include.control.leases.process import Process
from include.settings import settings
from tests.conftest import ROOT
from tests.support.waiting import wait_until


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch) -> Path:
    """A script instead of the JVM: it prints its arguments, starts a child process and keeps running."""
    script = tmp_path / "spark-submit"
    script.write_text('#!/bin/sh\necho "$@"\nsleep 600 &\nwait\n')
    script.chmod(0o755)
    monkeypatch.setattr(submit, "SPARK_SUBMIT", script)
    return script


@pytest.fixture
def launch(spark_submit: Path):
    """Launch drivers. The fixture kills those that still run after the test."""
    handles = []

    def run(launcher: Local, driver: str = "a_test") -> str:
        handles.append(launcher.launch(driver))
        return handles[-1]

    submit.log("a_test").unlink(missing_ok=True)
    yield run
    for handle in handles:
        Local("local[*]").kill(handle)


def child_of(handle: str) -> Process:
    parent = psutil.Process(Process.from_json(handle).pid)
    wait_until(parent.children, 10)
    return Process.of(parent.children()[0].pid)


def test_it_leads_a_session_of_its_own_and_a_later_process_finds_it_by_its_handle(launch):
    handle = launch(Local("local[*]"))
    pid = Process.from_json(handle).pid
    assert os.getsid(pid) == pid
    assert Local("local[*]").is_alive(handle)


def test_killing_ends_it_and_what_it_started_and_is_harmless_afterwards(launch):
    local = Local("local[*]")
    handle = launch(local)
    child = child_of(handle)
    local.kill(handle)
    assert not local.is_alive(handle)
    assert not child.is_alive
    local.kill(handle)


def test_killing_ends_a_stopped_one_too(launch):
    local = Local("local[*]")
    handle = launch(local)
    child = child_of(handle)
    psutil.Process(Process.from_json(handle).pid).suspend()
    psutil.Process(child.pid).suspend()
    local.kill(handle)
    assert not local.is_alive(handle)
    assert not child.is_alive


def test_spark_submit_is_told_the_master_and_where_executors_find_the_jars(launch):
    local = Local("spark://somewhere:7077", ("--queue", "streams"))
    child_of(launch(local))
    output = Path(local.log("a_test", "{}")).read_text().strip()
    jars = settings().spark_class_path
    options = f"--master spark://somewhere:7077 --conf spark.executor.extraClassPath={jars} --queue streams"
    assert output == f"{options} --name sluice a_test {ROOT}/jobs/stream.py --driver a_test"


def test_a_log_is_appended_to_until_it_is_long_and_then_put_aside_once(launch, monkeypatch):
    local = Local("local[*]")
    log = Path(local.log("a_test", "{}"))
    child_of(launch(local))
    child_of(launch(local))
    assert log.read_text().count("--driver a_test") == 2
    monkeypatch.setattr(submit, "LOG_BYTES", 10)
    child_of(launch(local))
    assert log.read_text().count("--driver a_test") == 1
    assert log.with_name("driver-a_test.log.1").read_text().count("--driver a_test") == 2


def test_the_driver_runs_the_python_of_its_launcher(launch):
    handle = launch(Local("local[*]"))
    # Before the script runs, the process has no environment of its own.
    child_of(handle)
    environment = psutil.Process(Process.from_json(handle).pid).environ()
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["PYTHONPATH"] == str(ROOT)


def test_a_driver_spells_names_of_files_as_utf8_whatever_the_locale_of_its_launcher():
    spelled = {"LC_ALL": "C.UTF-8"}
    for environment in ({}, {"LANG": "C"}, {"LC_ALL": "POSIX", "LANG": "C.UTF-8"}, {"LANG": "de_DE.ISO-8859-1"}):
        assert submit.utf8(environment) == spelled
    for environment in ({"LANG": "C.UTF-8"}, {"LC_CTYPE": "en_US.utf8", "LANG": "C"}):
        assert submit.utf8(environment) == {}
