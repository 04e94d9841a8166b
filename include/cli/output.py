"""What the commands share: the option `--json`, and how they print data, rows and moments."""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="As <layer>.<name>.")]
FlowName = Annotated[str, typer.Argument(metavar="FLOW", help="As `sluice status` names it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=10**9, help="At most so many.")]


def print_json(document: object, default: Callable[[Any], Any] | None = None) -> None:
    """Prints a document for programs. default: converts what JSON cannot represent."""
    print(json.dumps(document, indent=2, default=default))


def print_lines(lines: Iterable[str], or_else: str | None = None) -> None:
    """Prints lines for people. or_else: what to print where there are none; None: nothing."""
    text = "\n".join(lines) or or_else
    if text is not None:
        print(text)


def moment(seconds: float) -> str:
    """Formats seconds since 1970 as a moment in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
