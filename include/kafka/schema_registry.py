"""Reads schemas by id from a schema registry with Confluent's API.

An id never changes its schema, so each schema is asked for once and kept below the home for good.
"""

import base64
import json
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit

from include import no_redirect
from include.errors import Unreachable, UsageError
from include.settings import settings

DEADLINE_SECONDS = 10.0
# A replica of the registry may learn of a new schema later than the first message arrives.
REPLICA_SECONDS = 2.0
# An id that the registry lacks is asked for again after this time.
MISSING_SECONDS = 60.0
MOST_MISSING = 10_000
# Bytes that are no header give random ids. Registries count from 1, so the ids that one may have come first.
MOST_LACKING = 100
MOST_BYTES = 16_000_000
NO_SUCH_SCHEMA = 40403
MISSING = "missing.json"

_asks: ContextVar[bool] = ContextVar("asks", default=True)


class RegistryUnreachable(Unreachable):
    """The registry does not answer, or not as one."""

    error = "SCHEMA_REGISTRY_UNREACHABLE"


def schemas(ids: Iterable[int]) -> dict[int, str]:
    """Returns the text of the schema of each id, without ids that the registry lacks.

    It asks only for ids that are not in the home. Raises RegistryUnreachable, and UsageError without a registry.
    """
    url = settings().schema_registry
    if not url and not _asks.get():
        return {}
    if not url:
        raise UsageError(
            "SLUICE_SCHEMA_REGISTRY is not set, and a table reads its schemas from a registry: set it to the URL of one"
        )
    folder = _folder(url)
    texts = {schema_id: text for schema_id in sorted(set(ids)) if (text := _stored(folder, schema_id)) is not None}
    wanted = sorted(set(ids) - set(texts))
    missing = _missing(folder) if wanted else {}
    new = [schema_id for schema_id in wanted if time.time() - missing.get(schema_id, 0) > MISSING_SECONDS]
    if not new or not _asks.get():
        return texts
    try:
        return texts | _ask(url, folder, new, missing)
    except RegistryUnreachable:
        # What the registry has answered before holds until it answers again.
        if set(new) - set(missing):
            raise
        return texts


@contextmanager
def offline() -> Iterator[None]:
    """Within it, `schemas` asks no registry, and leaves out ids that are not in the home."""
    token = _asks.set(False)
    try:
        yield
    finally:
        _asks.reset(token)


def _ask(url: str, folder: Path, ids: list[int], missing: dict[int, float]) -> dict[int, str]:
    """Asks for schemas, and keeps the answers. ids: ascending. missing: ids that the registry has lacked before.

    After `MOST_LACKING` ids that the registry lacks, it takes all higher ones for lacking, too.
    """
    answers: dict[int, str | None] = {}
    for schema_id in ids:
        if list(answers.values()).count(None) == MOST_LACKING:
            break
        answers[schema_id] = _fetch(url, schema_id)
    if new := [schema_id for schema_id, text in answers.items() if text is None and schema_id not in missing]:
        threading.Event().wait(REPLICA_SECONDS)
        answers |= {schema_id: _fetch(url, schema_id) for schema_id in new}
    found = {schema_id: text for schema_id, text in answers.items() if text is not None}
    for schema_id, text in found.items():
        _write(_file(folder, schema_id), text)
    if lacking := [schema_id for schema_id in ids if schema_id not in found]:
        times = {**_missing(folder), **dict.fromkeys(lacking, time.time())}
        newest = sorted(times, key=lambda schema_id: times[schema_id])[-MOST_MISSING:]
        _write(folder / MISSING, json.dumps({schema_id: times[schema_id] for schema_id in newest}))
    return found


def _fetch(url: str, schema_id: int) -> str | None:
    """Returns the text of a schema; None if the registry says that it has none. Raises RegistryUnreachable."""
    status, body = _get(f"{url}/schemas/ids/{schema_id}")
    try:
        answer = json.loads(body)
        if status == 200:
            return str(answer["schema"])
        if status == 404 and answer["error_code"] == NO_SUCH_SCHEMA:
            return None
    except (ValueError, TypeError, KeyError):
        # No registry has answered: a proxy, or another program at this port.
        pass
    remedy = {401: "check SLUICE_SCHEMA_REGISTRY_CREDENTIALS", 403: "check the rights of its user"}
    raise _unreachable(
        url, f"answers {status} for schema id {schema_id}", remedy.get(status, "check SLUICE_SCHEMA_REGISTRY")
    )


def _get(url: str) -> tuple[int, bytes]:
    """Returns status and body of an answer within the deadline, whatever part of the connection hangs."""
    results: list[tuple[int, bytes]] = []
    problems: list[str] = []
    request = urllib.request.Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json", **_login()})

    def ask() -> None:
        try:
            with no_redirect.opener().open(request, timeout=DEADLINE_SECONDS) as response:
                results.append((response.status, response.read(MOST_BYTES)))
        except HTTPError as error:
            with error:
                results.append((error.code, error.read(MOST_BYTES)))
        except (OSError, HTTPException, ValueError) as error:
            # Only its kind: the text may hold a header with the password.
            problems.append(type(getattr(error, "reason", error)).__name__)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    if results:
        return results[0]
    problem = problems[0] if problems else f"no answer in {DEADLINE_SECONDS:g} s"
    raise _unreachable(settings().schema_registry, f"does not answer ({problem})", "check that it runs")


def _unreachable(url: str, problem: str, remedy: str) -> RegistryUnreachable:
    return RegistryUnreachable(f"the schema registry {url} {problem}: {remedy}; rows wait in the source meanwhile")


def _login() -> dict[str, str]:
    file = settings().schema_registry_credentials
    if file is None:
        return {}
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RegistryUnreachable(
            f"SLUICE_SCHEMA_REGISTRY_CREDENTIALS names {file}, which cannot be read ({type(error).__name__}): write "
            f"USER:PASSWORD or Bearer TOKEN into it"
        ) from None
    if text.startswith("Bearer "):
        return {"Authorization": text}
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def _folder(url: str) -> Path:
    """The directory of one registry's schemas: the ids of another one mean other schemas."""
    parts = urlsplit(url)
    return settings().schemas / quote(parts.netloc + parts.path, safe="")


def _file(folder: Path, schema_id: int) -> Path:
    return folder / f"{schema_id}.schema"


def _stored(folder: Path, schema_id: int) -> str | None:
    try:
        return _file(folder, schema_id).read_text()
    except FileNotFoundError:
        return None


def _missing(folder: Path) -> dict[int, float]:
    """Returns when the registry last said that it lacks an id, in seconds since 1970."""
    try:
        return {int(schema_id): float(at) for schema_id, at in json.loads((folder / MISSING).read_text()).items()}
    except (FileNotFoundError, ValueError):
        return {}


def _write(file: Path, text: str) -> None:
    # Renamed into place, so that others read a complete file.
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{uuid.uuid4().hex}")
    part.write_text(text)
    part.rename(file)
