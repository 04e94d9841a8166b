"""The trigger of tasks that were deferred before `include.airflow.in_driver` had it."""

from include.airflow.in_driver import Wait

__all__ = ["Wait"]
