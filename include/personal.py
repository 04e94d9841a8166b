"""Hides personal data where rows, and sentences about rows, are shown to people.

A digest stands for a value. Equal values have equal digests in one platform, and a key keeps others from trying values.
"""

import hmac
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from include import private_files
from include.settings import settings
from include.spec import Table, ddl
from include.spec.origin import ORIGIN

ERRORS = "_errors"
HIDDEN = "***"
DIGEST_CHARACTERS = 8
# What a sentence quotes, which is a value or the name of a column.
QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
# What a value may be without quotes: an e-mail address, a long number, and the rest of a record.
UNQUOTED = re.compile(r"[^\s'\"(<]+@[\w-]+(?:\.[\w-]+)+|\d(?:[\d .:/-]{4,}\d)|[{\[][{\"'].*", re.DOTALL)
# Conditions of Spark behind which a row stands, or a text of a transform, and exceptions, whose text may be a value.
FREE_TEXT = re.compile(
    r"^((?:\[(?:USER_RAISED|MALFORMED)\w*(?:\.\w+)?\])|(?!\[).*?\b\w*(?:Error|Exception):).*", re.DOTALL
)


def digest(value: Any) -> str | None:
    """Returns what stands for a value; None for NULL."""
    if value is None:
        return None
    key = _key(settings().home / "masking.key")
    if key is None:
        return HIDDEN
    data = value if isinstance(value, bytes) else json.dumps(value, default=str, sort_keys=True).encode()
    return HIDDEN + hmac.new(key, data, "sha256").hexdigest()[:DIGEST_CHARACTERS]


def row(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row as people may see it: a row of the table, of its quarantine or of its source.

    Of a table with personal data, bytes and columns that the table does not declare are hidden, too: they may hold a
    whole message.
    """
    if not table.has_personal_data:
        return dict(values)
    types = ddl.types(table.schema)
    return {
        name: value
        if name in ORIGIN
        else errors(table, value or ())
        if name == ERRORS
        else digest(value)
        if name not in types or types[name] == "BINARY"
        else _without_personal(value, name, table.personal)
        for name, value in values.items()
    }


def _without_personal(value: Any, path: str, personal: Iterable[str]) -> Any:
    """Returns the value of a column or field without what is personal in it. path: of the column or field."""
    if path in personal:
        return digest(value)
    if not any(name.startswith(f"{path}.") for name in personal):
        return value
    if isinstance(value, list):
        return [_without_personal(item, path, personal) for item in value]
    if isinstance(value, Mapping):
        return {name: _without_personal(item, f"{path}.{name}", personal) for name, item in value.items()}
    return digest(value)


def errors(table: Table, entries: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Returns the entries of `_errors` as people may see them: without values of personal columns and of payloads."""
    types = ddl.types(table.schema)
    return [
        {**entry, "message": _without_values(entry["message"])}
        if table.has_personal_data
        and (entry["field"] in table.personal or types.get(entry["field"], "BINARY") == "BINARY")
        else dict(entry)
        for entry in entries
    ]


def sentence(table: Table, text: str) -> str:
    """Returns a sentence about rows of the table, or of what it reads, as people may see it."""
    return _without_values(text) if table.has_personal_data else text


def _without_values(text: str) -> str:
    text = FREE_TEXT.sub(rf"\1 {HIDDEN}", text)
    return UNQUOTED.sub(HIDDEN, QUOTED.sub(lambda match: f"'{digest(match[0][1:-1])}'", text))


@lru_cache
def _key(file: Path) -> bytes | None:
    """Returns the key of digests, and writes one if there is none; None if that is impossible."""
    with suppress(OSError):
        private_files.create_key(file)
        return file.read_bytes()
    return None
