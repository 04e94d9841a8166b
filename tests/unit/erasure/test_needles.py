"""A value is found in every form, wherever it lies, and a longer word is another value."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest

from include.erasure import needles as needles_module
from include.erasure.needles import Needles
from include.errors import UsageError

SUBJECT = "ada+1@exämple.org"


def found(needles: Needles, data: bytes, is_text: bool = True) -> list[str]:
    return [hit.form.value for hit in needles.hits(data, is_text)]


@pytest.mark.parametrize("filler", [b"", b" ", b"\0\xff", b'"', b"word "])
@pytest.mark.parametrize(
    "form",
    [
        SUBJECT.encode(),
        json.dumps(SUBJECT).encode(),
        json.dumps(json.dumps({"id": SUBJECT})).encode(),
        quote(SUBJECT, safe="").encode(),
        quote(SUBJECT).lower().encode(),
        quote_plus(f"a {SUBJECT}").encode(),
        SUBJECT.encode().hex().encode(),
        SUBJECT.encode().hex().upper().encode(),
        *(base64.b64encode(b"x:"[:shift] + SUBJECT.encode() + b"!") for shift in range(3)),
        *(base64.urlsafe_b64encode(b"::"[:shift] + SUBJECT.encode()) for shift in range(3)),
    ],
)
def test_a_value_is_found_in_each_form_wherever_it_begins(form, filler):
    needles = Needles([SUBJECT, "somebody else"])
    for data in (form, filler + form, form + filler, filler * 3 + form + filler):
        # A word of base64 before it is part of its base64.
        if form[:1].isalnum() and filler[-1:].isalnum():
            continue
        assert set(found(needles, data, is_text=False)) == {SUBJECT}


@pytest.mark.parametrize("shift", range(3))
def test_a_longer_word_is_another_value_in_text_and_none_is_missed_in_bytes(shift):
    needles, longer = Needles(["user-12"]), b"-" * shift + b"user-123"
    for data in (b"user-123", b"auser-12", longer.hex().encode(), base64.b64encode(longer)):
        assert found(needles, data) == []
        assert found(needles, data, is_text=False) == ["user-12"]
    for data in (b"%22user-12%22", b"\\nuser-12\\n", b'\\u0022user-12"'):
        assert found(needles, data) == ["user-12"]
    for data in (b"user-12-3", b"user-12", b"(user-12)", base64.b64encode(b"-" * shift + b"user-12 "), b"\0user-12\0"):
        assert found(needles, data) == ["user-12"]


def test_a_value_on_the_border_of_two_chunks_is_found(monkeypatch):
    monkeypatch.setattr(needles_module, "CHUNK_BYTES", 64)
    needles = Needles(["user-12"])
    for begin in range(150):
        data = b"." * begin + b"user-12" + b"." * (200 - begin)
        assert len(found(needles, data)) == 1, begin


def test_each_of_a_thousand_values_is_found_and_counted_once():
    subjects = [f"user-{number:06}" for number in range(1000)]
    assert found(Needles(subjects), " ".join(subjects).encode()) == subjects


@pytest.mark.parametrize("value", ["ada", "47110"])
def test_a_value_that_bytes_hold_by_chance_is_refused(value):
    with pytest.raises(UsageError, match="name one of at least"):
        Needles([value])
