"""The certificate of an erasure: what was done, and what proved it. It names no subject, only keyed hashes.

Its digest is keyed, too: who changes the certificate cannot make the digest fit.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from include.catalog import Catalog
from include.control import suppression
from include.control.jobs.store import StoredJob
from include.erasure import scan
from include.erasure.scan import Scan
from include.errors import LedgerMismatch, SluiceError, UsageError
from include.kafka import broker, cluster
from include.settings import settings
from include.spec import Files, Kafka

FORMAT = 1


def file_of(number: int) -> Path:
    return suppression.key_file().parent / "certificates" / f"{number}.json"


def write(job: StoredJob, tables: Catalog, found: Scan, approver: str, macs: Sequence[str], secret: bytes) -> Path:
    """Writes the certificate of an erasure whose scan was clean. Returns its file."""
    assert found.is_clean, "nothing is certified that a scan has found"
    outcome = job.outcome
    document = {
        "format": FORMAT,
        "erasure": job.number,
        "requested_by": job.who,
        "requested_at": _moment(job.planned_at),
        "reason": job.reason,
        "approved_by": approver,
        "proved_at": _moment(datetime.now(UTC).timestamp()),
        "subjects": sorted(macs),
        "key": suppression.key_id(secret),
        "tables": outcome.get("tables", {}),
        "files": outcome.get("files", {}),
        "longest_pauses_seconds": outcome.get("pauses", {}),
        "readers_to_tell": outcome.get("readers", {}),
        "scanned": {"objects": found.objects, "bytes": found.bytes},
        "not_scanned": list(scan.PROGRAMS),
        "held_by_others": held_by_others(tables),
    }
    file = file_of(job.number)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.write_text(json.dumps(document | {"digest": _digest(document, secret)}, indent=2) + "\n")
    return file


def held_by_others(tables: Catalog) -> dict[str, str]:
    """By topic and folder that tables are fed from, until when it may still hold a subject, in words."""
    folders = [settings().landing]
    folders += [
        settings().folder(table.single_flow.source_as(Files).path)
        for table in tables.tables.values()
        if table.reads_files
    ]
    held = {f"folder {folder}": "until its owner deletes the files" for folder in folders}
    for table in tables.tables.values():
        for source in table.topics:
            held |= {f"topic {name}": _kept(name, source.cluster) for name in _topics(source)}
    return held


def _topics(source: Kafka) -> list[str]:
    return [name for name in source.names if name] or [str(source.pattern)]


def _kept(topic: str, cluster_name: str | None) -> str:
    try:
        configuration = broker.Topics(cluster.named(cluster_name)).configuration(topic)
    except SluiceError:
        return "nobody could say: its cluster did not answer"
    if "compact" in configuration.get("cleanup.policy", ""):
        return "until a newer record has the same key, or a tombstone"
    milliseconds = int(configuration.get("retention.ms", -1))
    return "for ever" if milliseconds < 0 else f"for {milliseconds / 3_600_000:g} hours after the record came"


def read(file: Path, secret: bytes) -> dict[str, Any]:
    """Returns a certificate. Raises UsageError if it is none, and LedgerMismatch if somebody has changed it."""
    try:
        document = json.loads(file.read_text())
        digest = document.pop("digest")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(f"{file} is no certificate of an erasure: name one of {file_of(0).parent}") from error
    if document.get("key") != suppression.key_id(secret):
        raise UsageError(f"{file} was made with another key than {suppression.key_file()} holds: restore that one")
    if not hmac.compare_digest(digest, _digest(document, secret)):
        raise LedgerMismatch(f"{file}: its digest does not fit, so it was changed after it was made")
    return dict(document)


def _digest(document: dict[str, Any], secret: bytes) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hmac.new(secret, b"certificate " + text.encode(), hashlib.sha256).hexdigest()


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
