"""What a driver may be asked to do beside its flows."""

from collections.abc import Callable
from typing import Protocol

from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include.control.orders import Orders


class SideJobs(Protocol):
    """What a driver is asked to do beside its flows."""

    def turn(self, orders: Orders, leaves: bool) -> bool:
        """Once a second: begin what is asked, or end it where the driver leaves; returns whether it is at work."""

    def end(self) -> None:
        """Return when it can write nothing more, or end the driver."""


# Makes it, of the driver's session, its control database and its name.
MakeSideJobs = Callable[[SparkSession, Engine, str], SideJobs]
