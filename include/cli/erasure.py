"""The commands about erasures of subjects: where one lies, the request, and the check of a certificate."""

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from include import catalog
from include.cli.output import Json, show
from include.control import suppression
from include.control.store import database
from include.erasure import certificate, requests, scan
from include.erasure.requests import Request
from include.errors import LedgerMismatch, UsageError
from include.settings import settings

STANDARD_INPUT = "-"
Subjects = Annotated[
    list[str] | None,
    typer.Option("--subject", metavar="KEY", help="Whom; may be given again. -: lines of the input."),
]
Also = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="VALUE", help="What else is to be gone, such as an address; may be given again."),
]


def erase(
    subject: Subjects = None,
    also: Also = None,
    reason: Annotated[str, typer.Option(help="For whoever approves it, and whoever reads the audit.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show where they lie, and plan nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Plan the erasure of subjects, or show where the lake and the home hold them."""
    tables, engine = catalog.load(), database.connect(settings().control_url)
    request = Request(tuple(_keys(subject)), tuple(also or ()))
    if not request.subjects:
        raise UsageError("--subject is missing: name whom to erase, or - and the keys on the standard input")
    if dry_run:
        found = scan.scan(request.needles, tables, engine)
        head = f"{found.objects:,} objects, {found.bytes:,} bytes scanned: {len(found.hits):,} hold a subject"
        others = certificate.held_by_others(tables)
        words = [f"not scanned: {where}, which keeps what it holds {until}" for where, until in others.items()]
        document = {"hits": found.hits, "unread": found.unread, "objects": found.objects, "bytes": found.bytes}
        show(as_json, {**document, "held_by_others": others}, [head, *found.lines(), *words])
        return
    if not reason:
        raise UsageError("--reason is missing: say why, for whoever approves it")
    scan.roots()
    job = requests.plan(engine, tables, request, getpass.getuser(), reason)
    lines = [
        f"{job.id} is planned: {job.message}",
        f"approve it in Airflow (DAG erase, number {job.number}), or begin it: "
        f"spark-submit jobs/erase.py --number {job.number} --approved-by NAME",
    ]
    show(as_json, {"number": job.number, "subjects": len(request.subjects)}, lines)


def verify_erasure(
    file: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="As $SLUICE_HOME/erasure/certificates/N.json.")],
    subject: Subjects = None,
    also: Also = None,
) -> None:
    """Check a certificate again: whether it is unchanged and of these subjects, and whether they are still gone.

    Exit code 10: something differs.
    """
    if not file.is_file():
        raise UsageError(f"{file} is no certificate of an erasure: name one of {certificate.file_of(0).parent}")
    tables, secret = catalog.load(), suppression.key()
    document = certificate.read(file, secret)
    request = Request(tuple(_keys(subject)), tuple(also or ()))
    if sorted(requests.macs(request, secret)) != document["subjects"]:
        raise UsageError(f"--subject names others than the {len(document['subjects']):,} of {file}: name exactly these")
    found = scan.scan(request.needles, tables, database.connect(settings().control_url))
    if not found.is_clean:
        raise LedgerMismatch("\n".join([f"{file} does not hold any more:", *found.lines()]))
    scanned = f"{found.objects:,} objects, {found.bytes:,} bytes scanned, no hit"
    print(f"{file} is unchanged, and of these subjects; {scanned}")


def _keys(subjects: list[str] | None) -> list[str]:
    """The keys of the options. One in the standard input is in no history of a shell, and in no list of processes."""
    keys = list(subjects or ())
    if STANDARD_INPUT not in keys:
        return keys
    lines = [line.strip() for line in sys.stdin]
    return [key for key in keys if key != STANDARD_INPUT] + [line for line in lines if line]
