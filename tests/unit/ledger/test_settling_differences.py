"""The ways back from exit 10: a commit whose transaction proves its batch, and differences that a person accepts."""

import json
import uuid

import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from sqlalchemy import select

from include import catalog
from include.catalog import Catalog
from include.cli import rows
from include.control.store import database
from include.control.store.schema import audits
from include.errors import LedgerMismatch, UsageError
from include.flows import resume_position
from include.flows.batches import BatchHistory
from include.ledger import inspection
from include.ledger.verify import verify
from include.settings import settings
from include.spec import Flow, Kafka, Table
from tests.support.account import StoredTable, kafka_rows

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("home")]


def end(offset: int) -> dict:
    return {"t": {"0": offset}}


def bronze() -> StoredTable:
    stored = StoredTable(Flow(name=f"bronze.t{uuid.uuid4().hex[:12]}", comment="", source=Kafka("t")))
    stored.create(kafka_rows(0, 0))
    return stored


def batch_without_metadata(stored: StoredTable, batch: int, flow: str | None = None) -> None:
    stored.plan(batch, end(batch * 10 + 10))
    transaction = Transaction(f"{flow or stored.table.flow}/{stored.generation}", batch)
    rows = kafka_rows(batch * 10, batch * 10 + 10)
    properties = CommitProperties(app_transactions=[transaction])
    write_deltalake(str(stored.path), rows, mode="append", commit_properties=properties)
    stored.acknowledge(batch)


def whole_batch(stored: StoredTable, batch: int) -> None:
    begin = end(batch * 10) if batch else None
    stored.batch(batch, begin, end(batch * 10 + 10), kafka_rows(batch * 10, batch * 10 + 10))


def run(table: Table, **arguments) -> None:
    rows.show_verification([table.name], **arguments)


@pytest.fixture
def found(monkeypatch, capsys):
    """`found(table)` returns what the command says as JSON, and whether it fails."""

    def verified(table: Table) -> tuple[dict, bool]:
        monkeypatch.setattr(catalog, "load", lambda: Catalog({table.name: table}))
        capsys.readouterr()
        try:
            run(table, as_json=True)
        except LedgerMismatch:
            return json.loads(capsys.readouterr().out), True
        return json.loads(capsys.readouterr().out), False

    return verified


def test_a_commit_that_lost_its_metadata_is_the_batch_that_its_transaction_names():
    stored = bronze()
    whole_batch(stored, 0)
    batch_without_metadata(stored, 1)
    assert resume_position.last_commit_metadata(stored.table)["source_to"] == end(20)
    whole_batch(stored, 2)
    verdict = verify(stored.table)
    assert (verdict.batches, verdict.ranges) == (3, 3)
    assert verdict.notes == [
        f"version 2 lost its metadata, and is {stored.table.name} 1/1 by its transaction and its checkpoint: its rows "
        f"were not counted by rule"
    ]
    history = BatchHistory(stored.table)
    assert inspection.table_faults(history, history.entries()) == []


@pytest.mark.parametrize("case", ["of another flow", "without offsets"])
def test_a_commit_whose_batch_is_not_proven_stays_one_that_nobody_knows(case: str, found):
    stored = bronze()
    whole_batch(stored, 0)
    batch_without_metadata(stored, 1, "bronze.other" if case == "of another flow" else None)
    whole_batch(stored, 2)
    if case == "without offsets":
        (stored.checkpoint / "offsets" / "1").unlink()
    answer, is_failed = found(stored.table)
    assert is_failed
    assert any("1/1 has no commit in the table's log" in one["difference"] for one in answer["differences"])


def test_all_differences_are_named_and_each_that_a_person_accepts_is_a_note(found, capsys):
    stored = bronze()
    for batch in range(3):
        whole_batch(stored, batch)
    stored.commit(1, end(10), end(20), kafka_rows(10, 20))
    stored.append(kafka_rows(5, 6))
    answer, is_failed = found(stored.table)
    assert is_failed
    assert len(answer["differences"]) > 1
    with pytest.raises(LedgerMismatch, match=f"differs.md; .* verify {stored.table.name} --accept "):
        run(stored.table)
    keys = [one["key"] for one in answer["differences"]]
    with pytest.raises(LedgerMismatch):
        run(stored.table, accept=keys[:1], reason="seen by ada")
    assert len(found(stored.table)[0]["differences"]) == len(keys) - 1
    run(stored.table, accept=keys[1:], reason="seen by ada")
    answer, is_failed = found(stored.table)
    assert not is_failed
    notes = answer["tables"][0]["notes"]
    assert sum("accepted by" in note and "seen by ada" in note for note in notes) == len(keys)
    with database.reading(database.connect(settings().control_url)) as connection:
        accepted = connection.execute(select(audits).where(audits.c.action == "accept difference")).all()
    assert [(row.target, row.reason) for row in accepted] == [(stored.table.name, "seen by ada")] * len(keys)
    stored.batch(3, end(35), end(40), kafka_rows(35, 40))
    assert found(stored.table)[1], "another difference is not accepted with these"


def test_an_accepted_total_stays_accepted_while_the_table_grows_and_no_longer(found):
    stored = StoredTable(Flow(name=f"bronze.t{uuid.uuid4().hex[:12]}", comment="", source=Kafka("t")))
    stored.create(kafka_rows(0, 0))
    for batch in range(2):
        whole_batch(stored, batch)
    # Its log says that it wrote ten rows, and it holds eleven.
    commit = stored.path / "_delta_log" / f"{1:020}.json"
    commit.write_text(commit.read_text().replace('"num_added_rows":10', '"num_added_rows":9'))
    answer, is_failed = found(stored.table)
    assert is_failed
    assert [one["difference"] for one in answer["differences"]] == [
        f"{stored.table.name} holds 20 rows, and its commits wrote 19"
    ]
    run(stored.table, accept=[answer["differences"][0]["key"]], reason="known")
    whole_batch(stored, 2)
    assert not found(stored.table)[1]
    commit.write_text(commit.read_text().replace('"num_added_rows":9', '"num_added_rows":8'))
    assert found(stored.table)[1]


def test_only_a_difference_that_is_there_is_accepted_and_never_without_a_reason(monkeypatch):
    stored = bronze()
    whole_batch(stored, 0)
    monkeypatch.setattr(catalog, "load", lambda: Catalog({stored.table.name: stored.table}))
    with pytest.raises(UsageError, match="has no difference '12345678': verify"):
        run(stored.table, accept=["12345678"], reason="known")
    with pytest.raises(UsageError, match="name the table, and write --reason why"):
        run(stored.table, accept=["12345678"])
