"""The command about the audit: whether it is as it was written, and all of it for an auditor."""

import csv
import json
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, TextIO

import typer
from sqlalchemy import Row, select

from include.cli.output import Json, moment, show
from include.control.store import audit_chain, database
from include.control.store.audit_chain import Verification
from include.control.store.schema import audits
from include.errors import AuditBroken, UsageError
from include.settings import settings


class What(StrEnum):
    """verify: compare all rows with their hashes. export: print all rows."""

    VERIFY = "verify"
    EXPORT = "export"


class Form(StrEnum):
    """csv: for a spreadsheet. jsonl: a JSON object a line, exact, with the hashes."""

    CSV = "csv"
    JSONL = "jsonl"


# In the order of a sentence: who did what to what, when, why, by whose approval, with which result.
COLUMNS = ("number", "at", "who", "approver", "action", "target", "reason", "result", "has_effect")
HASHES = ("at_seconds", "chain", "previous_hash", "hash")
# A spreadsheet would compute a cell that begins like this.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def audit(
    what: Annotated[What, typer.Argument(metavar="verify|export", help="Look for changes, or print all rows.")],
    head: Annotated[
        list[str] | None, typer.Option(metavar="HASH", help="verify: a head of before, which has to be there still.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="export: for a spreadsheet, or exact with hashes.")] = Form.CSV,
    as_json: Json = False,
) -> None:
    """Verify the audit by its hashes, or export who did what, when and why, with whose approval.

    A change ends it with exit code 11. Keep the heads that it prints elsewhere: they show a removal of the newest rows.
    """
    if what is What.VERIFY:
        _verify(head or [], as_json)
    elif head:
        raise UsageError("--head is for verify: write sluice audit verify --head HASH")
    else:
        with database.reading(database.connect(settings().control_url)) as connection:
            rows = connection.execute(select(audits).order_by(audits.c.number)).all()
        if as_json:
            show(as_json, list(map(_document, rows)), ())
        else:
            (_write_lines if form is Form.JSONL else _write_csv)(rows, sys.stdout)


def _verify(kept_heads: list[str], as_json: bool) -> None:
    with database.reading(database.connect(settings().control_url)) as connection:
        verification = audit_chain.verify(connection, database.now(connection))
        missing = [head for head in kept_heads if not audit_chain.holds(connection, head)]
    sentences = [
        *map(str, verification.findings),
        *(
            f"removed: no row has the head {head}: later rows were removed or replaced, or it is too old to be kept"
            for head in missing
        ),
    ]
    document = {"rows": verification.rows, "heads": verification.heads, "findings": sentences}
    show(as_json, document, _lines(verification, sentences))
    if sentences:
        raise AuditBroken(f"the audit is not as it was written: {len(sentences)} findings, see docs/operate/audit.md")


def _lines(verification: Verification, sentences: list[str]) -> Iterable[str]:
    yield from sentences
    if not sentences:
        yield f"{verification.rows:,} rows are as they were written"
    yield from (f"head of {chain}: {head}" for chain, head in verification.heads.items())


def _document(row: Row[Any]) -> dict[str, Any]:
    values = {**row._mapping, "at": moment(row.at), "at_seconds": row.at}
    return {name: values[name] for name in (*COLUMNS, *HASHES)}


def _write_lines(rows: Iterable[Row[Any]], output: TextIO) -> None:
    output.writelines(f"{json.dumps(_document(row))}\n" for row in rows)


def _write_csv(rows: Iterable[Row[Any]], output: TextIO) -> None:
    table = csv.writer(output, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in rows:
        document = _document(row)
        table.writerow(_cell(document[name]) for name in COLUMNS)


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
