"""The command `sluice`, and its old form `python -m include.ledger`: the list of all commands, and how one is run."""

import inspect
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer

from include.errors import SluiceError, UsageError
from include.lake import locations
from include.project.declaration import suggest
from include.settings import ROOT

# By panel of the help and by name: the function of the command, and what it is for, in a few words. Only the module of
# the requested command is imported: all of them take a second.
COMMANDS = {
    "Platform": {
        "up": ("include.local.up:main", ""),
        "down": ("include.local.down:main", "start or stop all of it"),
        "processes": ("include.local.status:main", "what runs, and tables"),
        "demo": ("include.local.demo:main", "a walk through it"),
        "report": ("include.cli.report:write", "all of it as HTML"),
        "grants": ("include.cli.grants:show_grants", "rights in PostgreSQL"),
        "pseudonyms": ("include.cli.pseudonyms:pseudonyms", "and their key"),
    },
    "Your tables": {
        "check": ("include.local.check:main", "find mistakes"),
        "preview": ("include.local.check:preview", "try today's code"),
        "new-table": ("include.local.new_table:main", "write a first file"),
        "remove-examples": ("include.local.remove_examples:main", "keep your own"),
    },
    "Rows": {
        "expectations": ("include.cli.rows:show_expectations", "rules rows broke"),
        "quarantine": ("include.cli.rows:show_quarantine", "rows set aside"),
        "inspect": ("include.cli.rows:show_inspection", "batches, restarts"),
        "explain": ("include.cli.rows:show_origin", "where a row went"),
        "verify": ("include.cli.rows:show_verification", "read against written"),
    },
    "Flows": {
        "status": ("include.cli.status:show_status", "state, lag, freshness"),
        "graph": ("include.cli.status:show_graph", "who reads whom"),
        "progress": ("include.cli.status:show_progress", "what batches took"),
        "executors": ("include.cli.executors:show_decisions", "of drivers, and why"),
        "gather": ("include.cli.status:gather", "store progress now"),
        "metrics": ("include.cli.exports:serve_metrics", "for Prometheus"),
        "mirror": ("include.cli.exports:mirror_offsets", "for Kafka's tools"),
        "lineage": ("include.cli.exports:send_lineage", "for OpenLineage"),
        "catalog": ("include.cli.exports:show_catalog", "names in Glue"),
    },
    "On call": {
        "restart": ("include.cli.actions:restart", ""),
        "stop": ("include.cli.actions:stop", ""),
        "start": ("include.cli.actions:start", ""),
        "drain": ("include.cli.actions:drain", ""),
        "move": ("include.cli.actions:move", ""),
        "ack": ("include.cli.actions:acknowledge", ""),
    },
    "Jobs": {
        "jobs": ("include.cli.jobs:show_jobs", "all, newest first"),
        "plan": ("include.cli.jobs:show_plan", "preview of a window"),
        "rewind": ("include.cli.jobs:show_rewind", "preview of a rewind"),
        "rebuild": ("include.cli.jobs:show_rebuild", "preview of a reset"),
        "erase": ("include.cli.erasure:erase", "a person's rows"),
        "hold": ("include.cli.jobs:hold", "keep old versions"),
        "release-hold": ("include.cli.jobs:release_hold", "keep them no more"),
        "audit": ("include.cli.audit:audit", "verify or export it"),
    },
}
# Each kind of job by itself, as `python -m include.ledger` lists them.
KINDS = {
    "windows": ("include.cli.jobs:show_windows", ""),
    "backfills": ("include.cli.jobs:show_backfills", ""),
    "rewinds": ("include.cli.jobs:show_rewinds", ""),
}
NAMES = [name for panel in COMMANDS.values() for name in panel]
HELP = ("-h", "--help")
VERSION = ("-V", "--version")


def main(program: str = "sluice") -> None:
    """Runs the command that `sys.argv` names. Raises SluiceError."""
    name, *arguments = sys.argv[1:] or HELP[1:]
    if name in (*HELP, "help"):
        import_module("include.cli.overview").show(program, COMMANDS)
        return
    if name in VERSION:
        print(f"sluice {version()}")
        return
    try:
        run(function_of(name), f"{program} {name}", arguments)
    except (SluiceError, BrokenPipeError):
        raise
    except Exception as error:
        # Each library has its own words for a store that is away.
        if outage := locations.outage():
            raise outage from error
        raise


def version() -> str:
    """The version of this checkout, which CHANGELOG.md begins with."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return found


def function_of(name: str) -> Callable[..., Any]:
    """The function of a command. Raises UsageError for an unknown one."""
    places = {command: place for panel in (*COMMANDS.values(), KINDS) for command, (place, _) in panel.items()}
    if name not in places:
        if name.startswith("-"):
            raise UsageError(f"{name!r} stands before the command: write the command first, such as status {name}")
        raise UsageError(f"{name!r} is not a command: {suggest(name, list(places))}")
    module, _, function = places[name].partition(":")
    callback: Callable[..., Any] = getattr(import_module(module), function)
    return callback


def run(function: Callable[..., Any], program: str, arguments: list[str]) -> None:
    """Calls the function with the options that its parameters declare. Its docstring is the help.

    Raises UsageError for an option that it does not take.
    """
    # Without a terminal, the help has no boxes either.
    app = typer.Typer(add_completion=False, rich_markup_mode="rich" if sys.stdout.isatty() else None)
    app.command(help=inspect.getdoc(function), context_settings={"help_option_names": list(HELP)})(function)
    command = typer.main.get_command(app)
    try:
        with command.make_context(program, arguments) as context:
            command.invoke(context)
    except typer.Exit:
        return
    except typer.TyperException as error:
        sentence = " ".join(error.format_message().split()).rstrip(".")
        raise UsageError(f"{sentence}: `{program} --help` says what it takes") from error
