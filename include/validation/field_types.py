"""Whether every value of a table file is of the kind, and in the range, that its field takes.

Python takes any value for any field. The kinds are those of the annotations in `include.spec`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from include.errors import DeclarationError
from include.spec import Delta, Files, Kafka, Maintenance, Table, Watermark
from include.validation.declaration import mistake

INT, LONG = 2**31 - 1, 2**63 - 1
TEN_YEARS_HOURS = 10 * 366 * 24
TEN_YEARS_MINUTES = TEN_YEARS_HOURS * 60
MONTH_SECONDS = 31 * 24 * 3600
# Beyond these, Spark, Delta or a date would overflow, when the flow runs.
MOST: dict[tuple[type, str], float] = {
    (Table, "interval_seconds"): MONTH_SECONDS,
    (Table, "fresh_minutes"): TEN_YEARS_MINUTES,
    (Watermark, "minutes"): TEN_YEARS_MINUTES,
    (Kafka, "max_offsets"): LONG,
    (Delta, "max_files"): INT,
    (Delta, "max_bytes"): LONG,
    (Delta, "since_version"): LONG,
    (Files, "max_files"): INT,
    (Files, "max_bytes"): LONG,
    (Maintenance, "target_file_mb"): 10**6,
    (Maintenance, "most_rewritten_mb"): 10**9,
    (Maintenance, "time_travel_hours"): TEN_YEARS_HOURS,
    (Maintenance, "every_batches"): INT,
    (Maintenance, "longest_minutes"): TEN_YEARS_MINUTES,
    (Maintenance, "most_held_hours"): TEN_YEARS_HOURS,
}
# Spark knows no shorter time between two batches.
LEAST: dict[tuple[type, str], float] = {(Table, "interval_seconds"): 0.001}
OF_THE_CATALOG = ("branch", "steps", "file")
WORDS = {str: "text", bool: "True or False", int: "a whole number", float: "a number", NoneType: "None"}


def check(table: Table) -> None:
    """Raises DeclarationError with a sentence for each value that is of another kind."""
    sentences = list(_wrong(table))
    if sentences:
        raise DeclarationError(*[str(mistake(table, sentence)) for sentence in sentences], table=table.name)


def _wrong(value: Any) -> Iterator[str]:
    """What is wrong with a value of the vocabulary, and with those in it."""
    kind: Any = type(value)
    whose = "" if kind is Table else f"{kind.__name__}'s "
    for name, hint in _hints(kind).items():
        given = getattr(value, name)
        if not _fits(given, hint):
            yield f"{whose}{name}{_culprit(name, given, hint)}"
        elif _is_number(given) and (remedy := _out_of_range((kind, name), given, hint)):
            yield f"{whose}{name} is {given!r}: {remedy}"
        else:
            for inner in _inside(given):
                yield from _wrong(inner)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.name not in OF_THE_CATALOG}


def _inside(value: Any) -> list[Any]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    values = list(value.values()) if isinstance(value, Mapping) else values
    return [one for one in values if is_dataclass(one)]


def _fits(value: Any, hint: Any) -> bool:
    origin, within = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in within)
    if origin is tuple:
        return isinstance(value, (tuple, list)) and all(_fits(one, within[0]) for one in value)
    if origin in (dict, Mapping):
        is_map = isinstance(value, Mapping)
        return is_map and all(
            _fits(one, kind) for pair in value.items() for one, kind in zip(pair, within, strict=True)
        )
    if origin is Callable:
        return callable(value)
    if hint in (int, float):
        return _is_number(value) and (hint is float or isinstance(value, int))
    return isinstance(value, hint)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _culprit(name: str, value: Any, hint: Any) -> str:
    alternatives = _alternatives(hint)
    if any(_fits(value, get_args(one)[0]) for one in alternatives if get_origin(one) is tuple):
        return f" is {value!r} and no tuple: write {name}=(...,) with the comma"
    for one in alternatives:
        if isinstance(value, Mapping) and get_origin(one) in (dict, Mapping):
            key_hint, value_hint = get_args(one)
            wrong = next(
                pair for pair in value.items() if not (_fits(pair[0], key_hint) and _fits(pair[1], value_hint))
            )
            if not _fits(wrong[0], key_hint):
                return f" has the key {wrong[0]!r}: it has to be {_words(key_hint)}"
            return f"[{wrong[0]!r}] is {wrong[1]!r}: it has to be {_words(value_hint)}"
    return f" is {value!r}: it has to be {_words(hint)}"


def _out_of_range(key: tuple[type, str], value: float, hint: Any) -> str | None:
    number = "a whole number" if int in _alternatives(hint) else "a number"
    if key == (Delta, "since_version"):
        return None if 0 <= value <= MOST[key] else "set it to a version of its source, 0 or more"
    if not 0 < value < math.inf:
        return f"set it to {number} above 0"
    if not LEAST.get(key, 0) <= value <= MOST.get(key, math.inf):
        return f"set it to {number} from {LEAST.get(key, 0)} to {MOST[key]}"
    return None


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(hint: Any) -> str:
    origin, within = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        words = [_words(one) for one in within]
        return " or ".join(dict.fromkeys(words))
    if origin is tuple:
        return f"a tuple of {_words(within[0])}"
    if origin in (dict, Mapping):
        return f"a dict of {_words(within[1])}"
    if origin is Callable:
        return "a function"
    return WORDS.get(hint) or str(hint.__name__)
