"""`python -m include.orchestration.watchdog`: the earlier name of `include.airflow.supervisor.watchdog`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("include.airflow.supervisor.watchdog", run_name="__main__", alter_sys=True)
