"""The command about the executors of drivers: how many, why, and whether this build would decide the same."""

from collections.abc import Iterator
from typing import Annotated

import typer

from include.cli.output import Json, Limit, moment, show
from include.control.flows import sizing
from include.control.flows.sizing import StoredDecision
from include.control.store import database
from include.settings import settings

OfDriver = Annotated[str | None, typer.Argument(metavar="DRIVER", help="Of this driver only.")]


def show_decisions(driver: OfDriver = None, limit: Limit = 20, as_json: Json = False) -> None:
    """List the newest decisions about the executors of drivers, each made again from its stored inputs."""
    decisions = sizing.decisions(database.connect(settings().control_url), driver, limit)
    lines = (line for decision in decisions for line in _lines(decision))
    show(as_json, [decision.as_json() for decision in decisions], lines, "no decision yet: see SLUICE_EXECUTORS")


def _lines(decision: StoredDecision) -> Iterator[str]:
    size = f"{decision.size_before} -> {decision.size}" if decision.size != decision.size_before else f"{decision.size}"
    head = f"{decision.number:>6}  {moment(decision.at)}  {decision.driver}  {size}  {decision.reason}"
    yield f"{head}: {decision.replayed.words}"
    if not decision.is_replayed:
        yield f"{'':>8}this build decides otherwise: {decision.replayed.size}, {decision.replayed.reason}"
