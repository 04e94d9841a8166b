"""The command about erasures of subjects: where one lies, the request, and the check of a certificate."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from include import catalog
from include.cli.output import Json, show
from include.control import suppression
from include.control.requesters import system_user
from include.control.store import database
from include.erasure import certificate, requests, scan
from include.erasure.requests import Request
from include.errors import LedgerMismatch, UsageError
from include.settings import settings

# In place of a key: the keys are lines of the standard input.
STANDARD_INPUT = "-"


class What(StrEnum):
    """verify: check a certificate again."""

    VERIFY = "verify"


def erase(
    what: Annotated[What | None, typer.Argument(metavar="verify", help="Check a certificate again.")] = None,
    file: Annotated[Path | None, typer.Argument(metavar="CERTIFICATE", help="The file of it.")] = None,
    subject: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Whom; may be given again. -: lines of the input.")
    ] = None,
    also: Annotated[
        list[str] | None, typer.Option(metavar="VALUE", help="What else is to be gone; may be given again.")
    ] = None,
    reason: Annotated[str, typer.Option(help="For whoever approves it, and reads the audit.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show where they lie, and plan nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Plan the erasure of subjects, or show where the lake and the home hold them.

    With verify: check whether a certificate is unchanged and of these subjects, and whether they are still gone. Exit
    code 10 says that they are not.
    """
    request = Request(tuple(_keys(subject)), tuple(also or ()))
    if not request.subjects:
        raise UsageError("--subject is missing: name whom to erase, or - and the keys on the standard input")
    if what:
        _verify(file, request, as_json)
    elif dry_run:
        _show_places(request, as_json)
    else:
        _plan(request, reason, as_json)


def _show_places(request: Request, as_json: bool) -> None:
    tables = catalog.load()
    engine = database.connect(settings().control_url)
    found = scan.scan(request.needles, tables, engine)
    readers = requests.registered_readers(engine, tables)
    head = f"{found.objects:,} objects, {found.bytes:,} bytes scanned: {len(found.hits):,} hold a subject"
    others = certificate.held_by_others(tables)
    words = [f"not scanned: {where}, which keeps what it holds {until}" for where, until in others.items()]
    words += [f"may have copies: the reader {reader}, which keeps {what}" for reader, what in readers.items()]
    joined = [f"{name} by {other}" for name, other in requests.joins(tables).items()]
    words += [f"the job looks for rows that the scan cannot know: {', '.join(joined)}"] if joined else []
    document = {"hits": found.hits, "unread": found.unread, "objects": found.objects, "bytes": found.bytes}
    show(as_json, {**document, "held_by_others": others, "readers": readers}, [head, *found.lines(), *words])


def _plan(request: Request, reason: str, as_json: bool) -> None:
    if not reason:
        raise UsageError("--reason is missing: say why, for whoever approves it")
    engine = database.connect(settings().control_url)
    job = requests.plan(engine, catalog.load(), request, system_user(), reason)
    lines = [
        f"{job.id} is planned: {job.message}",
        f"approve it in Airflow (DAG erase, number {job.number}), or begin it: "
        f"spark-submit jobs/erase.py --number {job.number} --approved-by NAME",
    ]
    show(as_json, {"number": job.number, "subjects": len(request.subjects)}, lines)


def _verify(file: Path | None, request: Request, as_json: bool) -> None:
    if file is None or not file.is_file():
        raise UsageError(f"{file} is no certificate of an erasure: name one of {certificate.file_of(0).parent}")
    secret = suppression.key()
    document = certificate.read(file, secret)
    if sorted(requests.macs(request, secret)) != document["subjects"]:
        raise UsageError(f"--subject names others than the {len(document['subjects']):,} of {file}: name exactly these")
    found = scan.scan(request.needles, catalog.load(), database.connect(settings().control_url))
    if not found.is_clean:
        raise LedgerMismatch("\n".join([f"{file} does not hold any more:", *found.lines()]))
    scanned = f"{found.objects:,} objects, {found.bytes:,} bytes scanned, no hit"
    show(as_json, document, [f"{file} is unchanged, and of these subjects; {scanned}"])


def _keys(subjects: list[str] | None) -> list[str]:
    """The keys of the options. One in the standard input is in no history of a shell, and in no list of processes."""
    keys = list(subjects or ())
    if STANDARD_INPUT not in keys:
        return keys
    lines = [line.strip() for line in sys.stdin]
    return [key for key in keys if key != STANDARD_INPUT] + [line for line in lines if line]
