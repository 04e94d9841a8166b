"""Checks the type and the range of every value of a table file, and refuses credentials in it.

Python does not check types itself. The expected types are the annotations in `include.spec`. The text of a table file
and its values are stored, printed and sent in many places.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from include.errors import DeclarationError
from include.project.declaration import declaration_error
from include.settings import LOGIN
from include.spec import Delta, Files, Kafka, Lookup, Maintenance, PythonLimits, Registry, Table, Upsert, Watermark

INT, LONG = 2**31 - 1, 2**63 - 1
TEN_YEARS_HOURS = 10 * 366 * 24
TEN_YEARS_MINUTES = TEN_YEARS_HOURS * 60
MONTH_SECONDS = 31 * 24 * 3600
# Larger values would overflow in Spark, in Delta or in a date while the flow runs.
MAXIMUM: dict[tuple[type, str], float] = {
    (Table, "interval_seconds"): MONTH_SECONDS,
    (Table, "fresh_minutes"): TEN_YEARS_MINUTES,
    (Watermark, "minutes"): TEN_YEARS_MINUTES,
    (Watermark, "ahead_minutes"): TEN_YEARS_MINUTES,
    (Upsert, "reach_minutes"): TEN_YEARS_MINUTES,
    (Lookup, "refresh_seconds"): MONTH_SECONDS,
    (PythonLimits, "memory_mb"): 10**6,
    (PythonLimits, "seconds"): MONTH_SECONDS,
    (Kafka, "max_offsets"): LONG,
    (Delta, "max_files"): INT,
    (Delta, "max_bytes"): LONG,
    (Delta, "since_version"): LONG,
    (Delta, "version_as_of"): LONG,
    (Files, "max_files"): INT,
    (Files, "max_bytes"): LONG,
    (Maintenance, "target_file_mb"): 10**6,
    (Maintenance, "most_rewritten_mb"): 10**9,
    (Maintenance, "time_travel_hours"): TEN_YEARS_HOURS,
    (Maintenance, "every_batches"): INT,
    (Maintenance, "longest_minutes"): TEN_YEARS_MINUTES,
    (Maintenance, "most_held_hours"): TEN_YEARS_HOURS,
}
MINIMUM: dict[tuple[type, str], float] = {
    # The shortest trigger interval of Spark is a millisecond.
    (Table, "interval_seconds"): 0.001,
    # With less, a Python process fails before it has imported pandas and pyarrow.
    (PythonLimits, "memory_mb"): 512,
}
SET_BY_CATALOG = ("steps", "reads_personal", "file", "registered")
TYPE_NAMES = {str: "text", bool: "True or False", int: "a whole number", float: "a number", NoneType: "None"}


def check_types(table: Table) -> None:
    """Raises DeclarationError with a sentence for each value of a wrong type or out of range."""
    sentences = list(_find_mistakes(table))
    if sentences:
        raise DeclarationError(*[str(declaration_error(table, sentence)) for sentence in sentences], table=table.name)


def _find_mistakes(value: Any) -> Iterator[str]:
    """A sentence for each mistake in a value of `include.spec` and in the values that it contains."""
    kind: Any = type(value)
    owner = Table if isinstance(value, Table) else kind
    prefix = "" if owner is Table else f"{kind.__name__}'s "
    for name, hint in _hints(kind).items():
        field_value = getattr(value, name)
        if not _matches(field_value, hint):
            yield f"{prefix}{name}{_describe_mismatch(name, field_value, hint)}"
        elif _is_number(field_value) and (remedy := _out_of_range((owner, name), field_value, hint)):
            yield f"{prefix}{name} is {field_value!r}: {remedy}"
        else:
            for nested in _nested_values(field_value):
                yield from _find_mistakes(nested)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.name not in SET_BY_CATALOG}


def _nested_values(value: Any) -> list[Any]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    values = list(value.values()) if isinstance(value, Mapping) else values
    return [nested for nested in values if is_dataclass(nested)]


def _matches(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_matches(value, alternative) for alternative in arguments)
    if origin is tuple:
        return isinstance(value, (tuple, list)) and all(_matches(item, arguments[0]) for item in value)
    if origin in (dict, Mapping):
        is_map = isinstance(value, Mapping)
        return is_map and all(
            _matches(item, kind) for pair in value.items() for item, kind in zip(pair, arguments, strict=True)
        )
    if origin is Callable:
        return callable(value)
    if hint in (int, float):
        return _is_number(value) and (hint is float or isinstance(value, int))
    return isinstance(value, hint)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _describe_mismatch(name: str, value: Any, hint: Any) -> str:
    alternatives = _alternatives(hint)
    if any(
        _matches(value, get_args(alternative)[0]) for alternative in alternatives if get_origin(alternative) is tuple
    ):
        return f" is {value!r} and no tuple: write {name}=(...,) with the comma"
    for alternative in alternatives:
        if isinstance(value, Mapping) and get_origin(alternative) in (dict, Mapping):
            key_hint, value_hint = get_args(alternative)
            entry = next(
                pair for pair in value.items() if not (_matches(pair[0], key_hint) and _matches(pair[1], value_hint))
            )
            if not _matches(entry[0], key_hint):
                return f" has the key {entry[0]!r}: it has to be {_describe_type(key_hint)}"
            return f"[{entry[0]!r}] is {entry[1]!r}: it has to be {_describe_type(value_hint)}"
    return f" is {value!r}: it has to be {_describe_type(hint)}"


def _out_of_range(key: tuple[type, str], value: float, hint: Any) -> str | None:
    number = "a whole number" if int in _alternatives(hint) else "a number"
    if key in ((Delta, "since_version"), (Delta, "version_as_of")):
        return None if 0 <= value <= MAXIMUM[key] else "set it to a version of its source, 0 or more"
    if not 0 < value < math.inf:
        return f"set it to {number} above 0"
    if not MINIMUM.get(key, 0) <= value <= MAXIMUM.get(key, math.inf):
        return f"set it to {number} from {MINIMUM.get(key, 0)} to {MAXIMUM[key]}"
    return None


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _describe_type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        names = [_describe_type(alternative) for alternative in arguments]
        return " or ".join(dict.fromkeys(names))
    if origin is tuple:
        return f"a tuple of {_describe_type(arguments[0])}"
    if origin in (dict, Mapping):
        return f"a dict of {_describe_type(arguments[1])}"
    if origin is Callable:
        return "a function"
    return TYPE_NAMES.get(hint) or str(hint.__name__)


# Where they belong.
PLACES = {
    Kafka.__name__: "put them into the properties file or the Airflow connection of a cluster, and write cluster='...'",
    Files.__name__: "put them into the AWS_* variables of the environment",
    Registry.__name__: "put them into the file that SLUICE_SCHEMA_REGISTRY_CREDENTIALS names",
    Table.__name__: "put them where docs/operate/credentials.md says",
}
SECRET_NAME = re.compile("passw|jaas|secret|token|credential|access.?key", re.IGNORECASE)
SECRET_KEYWORD = {
    Kafka.__name__: re.compile(f"option|config|servers|user|login|sasl|ssl|{SECRET_NAME.pattern}", re.IGNORECASE)
}
# As they stand in options of a client, in a login configuration, in the query of a URL, and before a host.
SECRET_VALUE = re.compile(rf"{LOGIN.pattern}|(?:passw|secret|token|access.?key)\w*[\"']?\s*[=:]", re.IGNORECASE)
BROKER = re.compile(r"['\"][^'\"@]*:[^'\"@]*@")


def check_credentials(table: Table) -> None:
    """Raises DeclarationError, whose sentence does not contain the credentials. No other check has seen the table."""
    sources = table.source.values() if isinstance(table.source, Mapping) else (table.source,)
    for value in (*sources, getattr(table.parse, "registry", None)):
        kind, text = type(value).__name__, repr(value)
        if kind in PLACES and (SECRET_VALUE.search(text) or (kind == Kafka.__name__ and BROKER.search(text))):
            raise declaration_error(table, f"{kind} has a password or key, and {_refuse_secret(kind)}")
    for name in table.properties if isinstance(table.properties, Mapping) else ():
        if SECRET_NAME.search(str(name)):
            raise declaration_error(table, f"properties has '{name}', and {_refuse_secret(Table.__name__)}")


def explain_keyword(call: str, keyword: str) -> str | None:
    """Returns why `Kafka`, for example, has no such keyword; None for a keyword that passes no credentials."""
    if call in PLACES and SECRET_KEYWORD.get(call, SECRET_NAME).search(keyword):
        return f"{call} has no '{keyword}', and {_refuse_secret(call)}"
    return None


def _refuse_secret(kind: str) -> str:
    return f"a table file is no place for credentials: {PLACES[kind]}"
