"""`python -m include.orchestration.notify`: the earlier name of `include.airflow.supervisor.notify`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("include.airflow.supervisor.notify", run_name="__main__", alter_sys=True)
