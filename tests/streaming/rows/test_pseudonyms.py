"""Columns that are stored as pseudonyms, by batches of both paths."""

import hmac
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from include.delta.delta_log import DeltaLog
from include.engine.checkpoints import definition
from include.engine.rows import transform
from include.errors import FlowBroken
from include.lake import locations
from include.settings import settings
from include.spec import Append, Delta, Flow
from tests.support.commits import switch_fast_path
from tests.support.flows import rows_of

SOURCE = "id BIGINT, email STRING"
KEY = b"0123456789abcdef0123456789abcdef"
ORDERS = Flow(
    name="silver.pseudonyms",
    comment="orders",
    source=Delta("bronze.pseudonyms"),
    schema=SOURCE,
    write=Append(),
    pseudonymise=("email",),
)
ROWS = [(1, "ada@example.org"), (2, "bob@example.org"), (3, "ada@example.org"), (4, None), (5, "z\u00fcrich")]


@pytest.fixture
def key() -> Iterator[Path]:
    file = settings().pseudonym_key
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(KEY + b"\n")
    yield file
    file.unlink(missing_ok=True)


def pseudonym(text: str | None) -> str | None:
    return None if text is None else hmac.new(KEY, text.encode(), "sha256").hexdigest()


@pytest.mark.parametrize("is_fast", [True, False], ids=["fast path", "spark"])
def test_equal_values_get_the_same_pseudonym_on_both_paths(
    is_fast: bool, name: str, append, run_once, key: Path, monkeypatch
):
    switch_fast_path(monkeypatch, is_fast)
    table = replace(ORDERS, name=f"silver.{name}", source=Delta(f"bronze.{name}"))
    append(f"bronze.{name}", ROWS, SOURCE)
    run_once(table)
    stored = {row["id"]: row["email"] for row in rows_of(table.name)}
    assert stored == {number: pseudonym(email) for number, email in ROWS}
    assert stored[1] == stored[3] != stored[2]
    metadata = next(DeltaLog(locations.table_path(table.name)).commits()).metadata
    assert metadata["fast_path"] == is_fast


def test_no_plan_shows_the_key_or_a_pseudonym_that_is_constant(spark, key: Path):
    rows = transform.apply_transform(spark.createDataFrame(ROWS, SOURCE), ORDERS)
    plan = rows._jdf.queryExecution().toString()
    assert "pseudonym(" in plan
    assert not any(text in plan.lower() for text in (KEY.decode(), KEY.hex()))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda file: file.unlink(), "cannot be read"),
        (lambda file: file.chmod(0o644), "can be read by everybody"),
        (lambda file: file.write_bytes(b"short"), "has 5 bytes"),
    ],
)
def test_a_batch_without_a_usable_key_is_broken_and_writes_nothing(damage, reason: str, spark, key: Path):
    damage(key)
    with pytest.raises(FlowBroken, match=reason) as error:
        transform.apply_transform(spark.createDataFrame(ROWS, SOURCE), ORDERS)
    assert error.value.error == "PSEUDONYM_KEY" and KEY.decode() not in str(error.value)


def test_a_table_that_begins_to_store_pseudonyms_has_another_definition():
    plain = replace(ORDERS, pseudonymise=())
    assert definition.rows_fingerprint(plain) != definition.rows_fingerprint(ORDERS)
    assert definition.fingerprint(plain) != definition.fingerprint(ORDERS)
