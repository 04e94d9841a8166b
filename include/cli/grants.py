"""The command about the rights of users of a control database on PostgreSQL."""

from typing import Annotated

import typer
from sqlalchemy import make_url

from include.cli.output import Json, show
from include.control.requesters import system_user
from include.control.store import audit, database, grants
from include.errors import UsageError
from include.settings import settings


def show_grants(
    apply: Annotated[bool, typer.Option("--apply", help="Execute them, as the user of SLUICE_CONTROL_URL.")] = False,
    reason: Annotated[str, typer.Option(metavar="WHY", help="With --apply: for whoever reads the audit.")] = "",
    as_json: Json = False,
) -> None:
    """Print the SQL that gives readers, drivers and the supervisor their rights on the control database."""
    if apply:
        if make_url(settings().control_url).get_backend_name() != "postgresql":
            raise UsageError(
                "SLUICE_CONTROL_URL is SQLite, whose only rights are those of its file: set it to a PostgreSQL"
            )
        with database.transaction(database.connect(settings().control_url)) as connection:
            grants.apply(connection)
            result = f"{', '.join(grants.Role)} have their rights"
            audit.record(connection, system_user(), "grant rights", "control database", reason, result)
    printed = list(grants.statements())
    show(as_json, {"applied": apply, "statements": printed}, (f"{statement};" for statement in printed))
