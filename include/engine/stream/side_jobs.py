"""The interface of jobs that a driver runs next to its flows."""

from collections.abc import Callable
from typing import Protocol

from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include.control.flows.orders import Orders


class SideJobs(Protocol):
    """Jobs that a driver runs next to its flows."""

    def turn(self, orders: Orders, is_ending: bool) -> bool:
        """Called every second: starts a requested job, or ends the current one if the driver ends. Returns whether one
        runs.
        """

    def end(self) -> None:
        """Ends the current job; returns when it can no longer write, or halts the driver."""


# Makes the side jobs from the driver's session, control database and name.
MakeSideJobs = Callable[[SparkSession, Engine, str], SideJobs]
