"""Names of `include.airflow` that an earlier version wrote into Airflow's database, crontabs and compose files."""

import runpy
from importlib.util import find_spec

import pytest

from include.airflow import dags
from include.airflow.in_driver import Wait


def test_a_dag_that_was_serialized_before_still_finds_its_timetable(at_home):
    from airflow.serialization.decoders import decode_timetable

    timetable = decode_timetable({"__type": "include.orchestration.days.Days", "__var": {}})
    assert isinstance(timetable, dags.Days)


def test_a_task_that_was_deferred_before_still_finds_its_trigger():
    from airflow._shared.module_loading import import_string

    assert import_string("include.orchestration.in_driver.Wait") is Wait


@pytest.mark.parametrize("name", ["watchdog", "housekeeping", "notify"])
def test_a_crontab_of_before_runs_what_has_the_name_now(monkeypatch, name: str):
    run, ran = runpy.run_module, []
    monkeypatch.setattr(runpy, "run_module", lambda module, **_: ran.append(module))
    run(f"include.orchestration.{name}", run_name="__main__")
    assert ran == [f"include.airflow.supervisor.{name}"]
    assert find_spec(ran[0])
