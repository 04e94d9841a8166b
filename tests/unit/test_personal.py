"""What people see of rows, and of sentences about rows, of a table with personal columns."""

import stat
from dataclasses import replace

import pytest

from include import personal
from include.project.sources import inline_steps
from include.settings import settings
from include.spec import Delta, Kafka, Lookup, Step, Table

SCHEMA = """
    id BIGINT, email STRING, amount INT, payload BINARY, customer STRUCT<name: STRING, country: STRING>,
    contacts ARRAY<STRUCT<phone: STRING, kind: STRING>>, offset BIGINT
"""
OPEN = Table(name="silver.orders", comment="orders", source=Delta("bronze.orders"), schema=SCHEMA)
PERSONAL = replace(OPEN, personal=("email", "customer.name", "contacts.phone"))
ROW = {
    "id": 7,
    "email": "ada@example.org",
    "amount": 5,
    "payload": b'{"email": "ada@example.org"}',
    "customer": {"name": "Ada", "country": "UK"},
    "contacts": [{"phone": "0170 1234567", "kind": "home"}],
    "offset": 12,
}


def test_a_table_without_personal_columns_shows_its_rows_as_they_are(home):
    assert personal.row(OPEN, ROW) == ROW


def test_only_personal_columns_and_fields_and_bytes_are_hidden(home):
    shown = personal.row(PERSONAL, ROW)
    hidden = [shown["email"], shown["payload"], shown["customer"]["name"], shown["contacts"][0]["phone"]]
    assert all(text.startswith(personal.HIDDEN) for text in hidden)
    assert shown["customer"]["country"] == "UK" and shown["contacts"][0]["kind"] == "home"
    assert (shown["id"], shown["amount"], shown["offset"]) == (7, 5, 12)


def test_equal_values_are_told_to_be_equal_and_null_stays_null(home):
    first, second = (personal.row(PERSONAL, {**ROW, "id": number}) for number in (1, 2))
    assert first["email"] == second["email"]
    assert personal.row(PERSONAL, {**ROW, "email": "bob@example.org"})["email"] != first["email"]
    assert personal.row(PERSONAL, {**ROW, "email": None})["email"] is None


def test_columns_of_the_source_that_the_table_does_not_declare_are_hidden(home):
    assert personal.row(PERSONAL, {"mail": "ada@example.org"})["mail"].startswith(personal.HIDDEN)


def test_the_digests_of_another_home_are_others(home, monkeypatch, tmp_path):
    here = personal.digest("ada@example.org")
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(personal, "settings", lambda: replace(settings(), home=tmp_path / "other"))
    assert personal.digest("ada@example.org") != here
    assert stat.S_IMODE((tmp_path / "other" / "masking.key").stat().st_mode) == 0o600


def test_without_a_place_for_a_key_nothing_of_a_value_is_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(personal, "settings", lambda: replace(settings(), home=tmp_path / "missing"))
    assert personal.digest("ada@example.org") == personal.HIDDEN


@pytest.mark.parametrize(
    "text",
    [
        '[CAST_INVALID_INPUT] The value \'ada@example.org\' of the type "STRING" cannot be cast to "INT"',
        "[USER_RAISED_EXCEPTION] no such person: Ada Lovelace, 0170 1234567",
        "ValueError: ada is unknown",
        "SparkRuntimeException: ada is unknown",
        'NumberFormatException: For input string: "ada"',
        "[MALFORMED_RECORD_IN_PARSING] Malformed records are detected: [ada,7,2]",
        '[MALFORMED_RECORD_IN_PARSING] Malformed records are detected: {"email": "ada@example.org"}',
        "[CANNOT_PARSE] ada@example.org and 0170 1234567 and 192.168.17.4",
    ],
)
def test_a_sentence_about_a_personal_table_has_no_value(text, home):
    shown = personal.sentence(PERSONAL, text).lower()
    assert not any(value in shown for value in ("ada", "0170", "1234567", "192.168", "lovelace")), shown
    assert personal.sentence(OPEN, text) == text


def test_a_sentence_keeps_its_error_class_and_what_is_no_value(home):
    text = "[CAST_INVALID_INPUT] The value 'ada' of the type \"STRING\" cannot be cast"
    assert personal.sentence(PERSONAL, text).startswith("[CAST_INVALID_INPUT] The value '***")


def test_untyped_values_of_personal_columns_and_payloads_are_hidden_and_others_are_shown(home):
    entries = [{"field": name, "message": f"'x{name}' is no INT"} for name in ("email", "amount", "payload", "other")]
    hidden = [entry["field"] for entry in personal.errors(PERSONAL, entries) if "'x" not in entry["message"]]
    assert hidden == ["email", "payload", "other"]
    assert personal.errors(OPEN, entries) == entries


def test_a_table_that_reads_personal_columns_says_nothing_of_them_either():
    bronze = Table(name="bronze.orders", comment="orders", source=Kafka("orders"), personal=("value",))
    step = Step(name="silver.step", comment="a step", source=Delta("bronze.orders"), schema="id BIGINT")
    silver = replace(OPEN, source=Delta("silver.step"))
    gold = Table(name="gold.orders", comment="orders", source=Delta("silver.orders"), schema="id BIGINT")
    beside = Table(
        name="gold.beside",
        comment="orders",
        source=Delta("gold.orders"),
        schema="id BIGINT",
        lookups=(Lookup("bronze.orders", on="id", columns=("value",)),),
    )
    declared = {table.name: table for table in (bronze, step, silver, gold, beside)}
    tables, _ = inline_steps(declared)
    assert [name for name, table in tables.items() if table.reads_personal] == ["silver.orders", "gold.beside"]
    assert all(flow.has_personal_data for flow in tables["silver.orders"].flows)
