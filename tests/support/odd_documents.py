"""Generates odd JSON documents, and reads them with Python's own `json`, `decimal` and `datetime`."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

SCHEMA = (
    "text STRING, whole BIGINT, exact DECIMAL(38,18), near DOUBLE, moment TIMESTAMP, local TIMESTAMP_NTZ, day DATE, "
    "other STRING"
)
FIELDS = tuple(column.split()[0] for column in SCHEMA.split(", "))
BLANKS = ("", "", "", " ", "\t ", "\r")
CHARACTERS = "aB0 :,{}[]'/\\\"\b\n\t\0\x7fäµμ\u2028\ufffe\ufeff\N{GRINNING FACE}\N{MUSICAL SYMBOL G CLEF}?"
# Spark's reader may go on behind some of these as if they were whole.
DAMAGE = ("", '"', "\\", "\\u", "\\u1", "\\u12", "\x01", "\t", "1", ",", ":", "{", "}", "[", "]", "null", "'")
FORMS_OF_NUMBERS = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


class Number(str):
    """A number of a document, as its text."""


class Pairs(tuple):
    """An object of a document, as pairs."""


@dataclass
class OddDocuments:
    """times: what each text of a time means, by the column and the text, as far as the documents are made."""

    random: random.Random
    times: dict[str, datetime | date | None] = field(default_factory=dict)

    def document(self) -> str:
        pick = self.random
        pairs = [(name, self.value(name)) for name in FIELDS if pick.random() < 0.9]
        pairs += [(self.text(), self.nested(2)) for _ in range(pick.randrange(3))]
        if pairs and pick.random() < 0.05:
            name = pick.choice(FIELDS)
            pairs.append((name, self.value(name)))
        pick.shuffle(pairs)
        items = [f"{self.blank()}{self.quoted(name)}{self.blank()}:{self.blank()}{value}" for name, value in pairs]
        text = "{" + f"{self.blank()},".join(items) + "}"
        if pick.random() < 0.05:
            others = [f"{text},{text}", f"{text}],[{text}", f"{text}]", text[:-1], f"{text}1", "[1]", text * 2]
            text = pick.choice(others)
        if pick.random() < 0.1:
            text = self.damaged(text)
        return pick.choice(["", "", "\ufeff"]) + text + self.blank()

    def damaged(self, text: str) -> str:
        """Replaces up to two characters, often at a sign that divides the document, if no document is left then."""
        signs = [place for place, sign in enumerate(text) if sign in '",:{}[]']
        begin = self.random.choice(signs) if self.random.random() < 0.7 else self.random.randrange(len(text))
        damaged = text[:begin] + self.random.choice(DAMAGE) + text[begin + self.random.randrange(3) :]
        return damaged if read(damaged) is None else text

    def value(self, name: str) -> str:
        pick = self.random
        if pick.random() < 0.05:
            return "null"
        match name:
            case "whole" | "exact" | "near":
                number = self.number(is_short=pick.random() < 0.7)
                return pick.choice([number, number, json.dumps(number), json.dumps(f" {number}")])
            case "moment" | "local" | "day":
                return json.dumps(self.time(name))
            case "other":
                return self.nested(3)
            case _:
                return pick.choice([self.number(False), self.quoted(self.text()), "true", "false"])

    def number(self, is_short: bool) -> str:
        pick = self.random
        if pick.random() < 0.03:
            return pick.choice(["NaN", "Infinity", "-Infinity", "-0", "-0.0", "1E400", "1e-400", "0e0"])
        sign = pick.choice(["", "", "-"])
        whole = str(pick.randrange(10 ** pick.randrange(1, 8 if is_short else 40)))
        fraction = "." + self.digits(3 if is_short else 30) if pick.random() < 0.6 else ""
        fraction = fraction and fraction + pick.choice(["", "0", "000"])
        exponent = pick.choice(["e", "E"]) + pick.choice(["", "+", "-"]) + str(pick.randrange(30))
        return sign + whole + fraction + (exponent if pick.random() < 0.3 else "")

    def digits(self, most: int) -> str:
        return "".join(self.random.choices("0123456789", k=self.random.randrange(1, most + 1)))

    def text(self) -> str:
        return "".join(self.random.choices(CHARACTERS, k=self.random.randrange(6)))

    def quoted(self, text: str) -> str:
        """The text as JSON, with some of its characters escaped; now and then with half of a surrogate pair."""
        pick = self.random
        quoted = "".join(pick.choice([json.dumps, self._plain])(character)[1:-1] for character in text)
        half = pick.choice([r"\ud83d", r"\uDE00", r"\\\ud83d", r"\ud83d\ud83d\ude00"]) if pick.random() < 0.004 else ""
        return f'"{quoted}{half}"'

    @staticmethod
    def _plain(character: str) -> str:
        return json.dumps(character, ensure_ascii=False)

    def nested(self, depth: int) -> str:
        pick = self.random
        match pick.randrange(5 if depth else 3):
            case 0:
                return self.number(False)
            case 1:
                return self.quoted(self.text())
            case 2:
                return pick.choice(["null", "true", "false", '""'])
            case 3:
                return "[" + ", ".join(self.nested(depth - 1) for _ in range(pick.randrange(3))) + "]"
            case _:
                items = [f"{self.quoted(self.text())}: {self.nested(depth - 1)}" for _ in range(pick.randrange(3))]
                return "{" + ",".join(items) + "}"

    def blank(self) -> str:
        return self.random.choice(BLANKS)

    def time(self, name: str) -> str:
        """A text, whose meaning is in `times`: None for one that is no time of the column."""
        pick = self.random
        begin = pick.choice([datetime(1, 1, 1), datetime(9999, 12, 31), datetime(1970, 1, 1), datetime(2026, 3, 1)])
        moment = begin + timedelta(microseconds=pick.randrange(86_400_000_000))
        if pick.random() < 0.03:
            none = ["12:30", "now", "2026", "2026-03-01+01:00", "2026-02-30", "10000-01-01", "0000-01-01"]
            return self._mean(name, pick.choice([*none, "1772366400", "", "x"]), None)
        if name == "day":
            midnights = ["%Y-%m-%dT00:00Z", "%Y-%m-%d 00:00:00.000", "%Y-%m-%dZ", "%Y-%m-%d+00:00"]
            form = pick.choice(["%Y-%m-%d", "%Y%m%d", *midnights])
            return self._mean(name, _formatted(moment, form), moment.date())
        form = pick.choice(["%Y-%m-%dT%H:%M", "%Y%m%dT%H%M", "%Y-%m-%d %H:%M", "%Y-%m-%dt%H:%M"])
        form = form if ":" in form or name == "local" else "%Y%m%dT%H%M"
        moment, seconds = self._seconds(moment, ":" if ":" in form else "")
        zone, minutes = self._zone(name)
        meaning = moment if moment is not None and (name == "local" or minutes is None) else None
        if moment is not None and minutes is not None:
            meaning = _shifted(moment, minutes)
        text = _formatted(self._base, form) + seconds + zone
        return self._mean(name, text, None if name == "local" and minutes else meaning)

    def _seconds(self, moment: datetime, colon: str) -> tuple[datetime | None, str]:
        pick, self._base = self.random, moment
        if pick.random() < 0.2:
            return moment.replace(second=0, microsecond=0), ""
        if pick.random() < 0.3:
            return moment.replace(microsecond=0), f"{colon}{moment.second:02}"
        nanos = pick.choice(["", "000", "0", "001", "999"])
        exact = moment if not nanos.strip("0") else None
        return exact, f"{colon}{moment.second:02}{pick.choice('.,')}{moment.microsecond:06}{nanos}"

    def _zone(self, name: str) -> tuple[str, int | None]:
        pick = self.random
        if pick.random() < 0.4:
            return pick.choice([("Z", 0), ("z", 0), ("+00:00", 0), ("-00:00", 0), ("", None), ("", None)])
        minutes = pick.choice([-720, -300, -30, 60, 330, 840])
        hours, rest = divmod(abs(minutes), 60)
        return f"{'-' if minutes < 0 else '+'}{hours:02}{pick.choice(['', ':'])}{rest:02}", minutes

    def _mean(self, name: str, text: str, meaning: datetime | date | None) -> str:
        assert self.times.setdefault(f"{name} {text}", meaning) == meaning, text
        return text


def _formatted(moment: datetime, form: str) -> str:
    # `strftime` does not pad a year before 1000.
    return moment.strftime(form.replace("%Y", f"{moment.year:04}"))


def _shifted(moment: datetime, minutes: int) -> datetime | None:
    try:
        zoned = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
        return zoned.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        return None


def read(text: str) -> dict[str, Any] | None:
    """The fields of a document; None if it is no single object, or holds half of a surrogate pair."""
    hooks: dict[str, Callable] = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), Number)
    try:
        pairs = json.loads(text.removeprefix("\ufeff"), **hooks, object_pairs_hook=Pairs)
    except ValueError:
        return None
    if not isinstance(pairs, Pairs) or any("\ud800" <= character <= "\udfff" for character in _characters(pairs)):
        return None
    return dict(pairs)


def _characters(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "".join(map(_characters, value)) if isinstance(value, tuple | list) else ""


def as_text(value: Any) -> str | None:
    """The text of a field that is no array or object."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


def typed(name: str, text: str | None, times: dict[str, datetime | date | None]) -> Any:
    """The value of a text in its column: exact, or None."""
    if text is None or name in ("text", "other"):
        return text
    if name in ("moment", "local", "day"):
        return times[f"{name} {text}"]
    if name == "near":
        number = float(text)
        return None if abs(number) == float("inf") and "inf" not in text.lower() else number
    if not FORMS_OF_NUMBERS.fullmatch(text):
        return None
    try:
        with localcontext() as context:
            context.prec = 1_000
            number = Decimal(text.strip())
            if name == "whole":
                return int(number) if number == number.to_integral_value() and -(2**63) <= number < 2**63 else None
            is_exact = number == number.quantize(Decimal("1e-18")) and abs(number) < 10**20
            return number if is_exact else None
    except InvalidOperation:
        return None
