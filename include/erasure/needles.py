"""Finds values in bytes: as they are, as JSON escapes them, URL-encoded, in hexadecimal digits and in base64.

The time does not grow with the number of values: one table tells at each byte whether some form may end there.
"""

import base64
import binascii
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

import numpy as np

from include.errors import UsageError

# A shorter value would be found everywhere.
LEAST_CHARACTERS, LEAST_DIGITS = 4, 6
TAIL_BYTES = 4
# Of the table's slots. A smaller table is faster, until other bytes meet the slots of forms.
LEAST_BITS, MOST_BITS, SLOTS_A_FORM = 16, 22, 1024
# Fits into a processor's cache.
CHUNK_BYTES = 2**18
WORD = np.dtype("<u4")
MIXED = np.uint32(2_654_435_761)
PLAIN, ESCAPED, URL, HEX, BASE64 = "plain", "JSON", "URL-encoded", "hexadecimal", "base64"
BASE64_DIGITS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")
ESCAPE = re.compile(rb"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[nrtbf])$")


@dataclass(frozen=True)
class Form:
    """One way in which bytes hold a value. lead: characters before `text` in the group of base64 that it begins in."""

    value: str
    name: str
    text: bytes
    lead: int = 0


@dataclass(frozen=True)
class Hit:
    """Where bytes hold a value."""

    form: Form
    begin: int
    end: int


def is_long_enough(value: str) -> bool:
    """Whether bytes that hold the value hold it on purpose."""
    return len(value) >= (LEAST_DIGITS if value.isdecimal() else LEAST_CHARACTERS)


class Needles:
    """Values that are looked for. Raises UsageError for one that is too short to be found by."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = tuple(dict.fromkeys(values))
        for value in self.values:
            if not is_long_enough(value):
                what, least = ("digits", LEAST_DIGITS) if value.isdecimal() else ("characters", LEAST_CHARACTERS)
                raise UsageError(
                    f"a subject has {len(value)} {what}, which any bytes hold by chance, so no scan can prove that it "
                    f"is gone: name one of at least {least} {what}"
                )
        self._forms: defaultdict[bytes, list[Form]] = defaultdict(list)
        for value in self.values:
            for form in _forms(value):
                self._forms[form.text].append(form)
        self._lengths = sorted({len(text) for text in self._forms})
        self._bits = min(MOST_BITS, max(LEAST_BITS, (SLOTS_A_FORM * len(self._forms)).bit_length()))
        self._table = np.zeros(1 << self._bits, dtype=bool)
        for text in self._forms:
            self._table[self._slots(np.frombuffer(text[-TAIL_BYTES:], WORD))] = True

    @property
    def longest(self) -> int:
        """Bytes of the longest form: what two parts of an object have to share."""
        return self._lengths[-1] if self._lengths else 0

    def hits(self, data: bytes, is_text: bool = False) -> Iterator[Hit]:
        """Yields where the bytes hold a value. is_text: a longer word that contains a value is another one."""
        if not self._lengths:
            return
        for begin in range(0, len(data), CHUNK_BYTES):
            places = np.concatenate([self._tails(data, begin, shift) for shift in range(TAIL_BYTES)])
            for place in np.sort(places):
                yield from self._ending(data, int(place) + TAIL_BYTES, is_text)

    def _tails(self, data: bytes, begin: int, shift: int) -> np.ndarray:
        """Returns where in a chunk the last bytes of a form may begin, at each fourth byte."""
        first = begin + shift
        count = min(CHUNK_BYTES, len(data) - first) // TAIL_BYTES
        if count <= 0:
            return np.empty(0, np.int64)
        words = np.frombuffer(data, WORD, count, first)
        return first + TAIL_BYTES * np.flatnonzero(self._table[self._slots(words)])

    def _slots(self, words: np.ndarray) -> np.ndarray:
        """Returns the slot of each four bytes."""
        return (words * MIXED) >> np.uint32(32 - self._bits)

    def _ending(self, data: bytes, end: int, is_text: bool) -> Iterator[Hit]:
        for length in self._lengths:
            if length > end:
                return
            for form in self._forms.get(data[end - length : end], ()):
                hit = Hit(form, end - length, end)
                if not is_text or _is_whole(data, hit):
                    yield hit


def _forms(value: str) -> Iterator[Form]:
    plain = value.encode()
    yield Form(value, PLAIN, plain)
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    # Delta's log holds statistics and metadata as JSON within JSON.
    for text in (escaped | {json.dumps(text)[1:-1] for text in escaped}) - {value}:
        yield Form(value, ESCAPED, text.encode())
    quoted = {quote(value, safe=""), quote(value), quote_plus(value)}
    for text in (quoted | {_lower_escapes(text) for text in quoted}) - {value}:
        yield Form(value, URL, text.encode())
    for text in {plain.hex(), plain.hex().upper()}:
        yield Form(value, HEX, text.encode())
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + plain)
        lead, end = -(-8 * shift // 6), 8 * (shift + len(plain)) // 6
        for alphabet in {encoded[lead:end], encoded[lead:end].replace(b"+", b"-").replace(b"/", b"_")}:
            yield Form(value, BASE64, alphabet, lead)


def _lower_escapes(text: str) -> str:
    return "%".join(part[:2].lower() + part[2:] if number else part for number, part in enumerate(text.split("%")))


def _is_whole(data: bytes, hit: Hit) -> bool:
    """Whether the value is not part of a longer word."""
    if hit.form.name == HEX:
        before, after = _digits(data[max(hit.begin - 2, 0) : hit.begin]), _digits(data[hit.end : hit.end + 2])
        return _is_separate(hit.form.value, before[-1:], after[:1])
    if hit.form.name == BASE64:
        return _is_whole_in_base64(data, hit)
    before = data[max(hit.begin - 6, 0) : hit.begin]
    # The last character of an escape, as in "%22ada", belongs to no word.
    return _is_separate(hit.form.value, b"" if ESCAPE.search(before) else before[-1:], data[hit.end : hit.end + 1])


def _is_separate(value: str, before: bytes, after: bytes) -> bool:
    joins_before = value[0].isalnum() and before.isalnum()
    joins_after = value[-1].isalnum() and after.isalnum()
    return not (joins_before or joins_after)


def _digits(digits: bytes) -> bytes:
    try:
        return binascii.unhexlify(digits)
    except binascii.Error:
        return b""


def _is_whole_in_base64(data: bytes, hit: Hit) -> bool:
    begin, end = hit.begin - hit.form.lead, hit.end
    if begin < 0:
        return True
    if begin >= 4 and all(byte in BASE64_DIGITS for byte in data[begin - 4 : begin]):
        begin -= 4
    while end < len(data) and end < hit.end + 8 and data[end] in BASE64_DIGITS:
        end += 1
    text = data[begin:end].translate(bytes.maketrans(b"-_", b"+/"))
    try:
        # A rest of one digit holds no whole byte.
        whole = text[: len(text) - 1] if len(text) % 4 == 1 else text
        decoded = base64.b64decode(whole + b"=" * (-len(whole) % 4), validate=True)
    except binascii.Error:
        return True
    value = hit.form.value.encode()
    place = decoded.find(value)
    if place < 0:
        return True
    following = decoded[place + len(value) : place + len(value) + 1]
    return _is_separate(hit.form.value, decoded[max(place - 1, 0) : place], following)
