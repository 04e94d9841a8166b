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


def show(
    as_json: bool,
    document: object,
    lines: Iterable[str],
    or_else: str | None = None,
    default: Callable[[Any], Any] | None = None,
) -> None:
    """Prints the document for programs, or the lines for people.

    or_else: what to print where there are no lines; None: nothing. default: converts what JSON cannot represent.
    """
    text = json.dumps(document, indent=2, default=default) if as_json else "\n".join(lines) or or_else
    if text is not None:
        print(text)


def moment(seconds: float) -> str:
    """Formats seconds since 1970 as a moment in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
