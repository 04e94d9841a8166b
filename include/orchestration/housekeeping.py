"""`python -m include.orchestration.housekeeping`: the earlier name of `include.airflow.supervisor.housekeeping`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("include.airflow.supervisor.housekeeping", run_name="__main__", alter_sys=True)
