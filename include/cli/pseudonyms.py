"""The command about the key of pseudonyms: whether there is one, and how it comes and goes."""

from enum import StrEnum
from typing import Annotated

import typer

from include import catalog
from include.cli.output import Json, show
from include.control import pseudonym_key
from include.control.requesters import system_user
from include.control.store import database
from include.errors import UsageError
from include.settings import settings


class What(StrEnum):
    """create-key: write a random one. destroy-key: overwrite and delete it."""

    CREATE = "create-key"
    DESTROY = "destroy-key"


def pseudonyms(
    what: Annotated[
        What | None, typer.Argument(metavar="create-key|destroy-key", help="Write a random key, or destroy it.")
    ] = None,
    reason: Annotated[str, typer.Option(metavar="WHY", help="For whoever reads the audit.")] = "",
    approved_by: Annotated[str | None, typer.Option(metavar="NAME", help="destroy-key: who else agreed.")] = None,
    yes_destroy: Annotated[bool, typer.Option("--yes-destroy", help="destroy-key: it cannot be undone.")] = False,
    as_json: Json = False,
) -> None:
    """Show which tables store pseudonyms and whether their key is there, or create or destroy the key.

    Without the key, nobody can compute a pseudonym from a value. Copies of the key elsewhere stay.
    """
    tables = [table for table in catalog.load().tables.values() if table.pseudonymise]
    names, drivers = [table.name for table in tables], sorted({flow.driver for table in tables for flow in table.flows})
    engine = database.connect(settings().control_url)
    match what:
        case None:
            number = pseudonym_key.key_id()
            head = f"key {number} is in {settings().pseudonym_key}" if number else "there is no key of pseudonyms"
            lines = [head, *(f"{table.name} stores pseudonyms of {', '.join(table.pseudonymise)}" for table in tables)]
        case What.CREATE:
            number = pseudonym_key.create(engine, system_user(), reason)
            lines = [f"key {number} is written to {settings().pseudonym_key}: keep a copy elsewhere"]
        case What.DESTROY:
            if not yes_destroy or not reason.strip():
                raise UsageError(
                    "destroy-key cannot be undone, and makes all pseudonyms anonymous: write --yes-destroy, and "
                    "--reason WHY for the audit"
                )
            number = pseudonym_key.destroy(engine, system_user(), reason, approved_by)
            lines = [f"key {number} is destroyed: destroy its copies, too"]
            lines += [f"restart driver '{driver}', which has it in its memory" for driver in drivers]
            lines += [f"{name} is BROKEN at its next batch, until there is a new key" for name in names]
    show(as_json, {"key": number, "tables": names, "drivers": drivers}, lines)
