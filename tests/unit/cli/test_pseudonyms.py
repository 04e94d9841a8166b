"""`sluice pseudonyms` writes the key of pseudonyms, says whether it is there, and destroys it for good."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from include import catalog
from include.catalog import Catalog
from include.cli import main as cli
from include.control.store import database
from include.control.store.schema import audits
from include.errors import UsageError
from include.settings import settings
from include.spec import Delta, Table

TABLE = Table(
    name="silver.orders", comment="x", source=Delta("bronze.orders"), schema="email STRING", pseudonymise=("email",)
)
DESTROY = ("destroy-key", "--yes-destroy", "--reason", "the study is over")


@pytest.fixture
def run(home: Path, own_settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    own_settings(SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")
    monkeypatch.setattr(catalog, "load", lambda: Catalog({TABLE.name: TABLE}))

    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sluice", "pseudonyms", *arguments])
        cli.main()
        return capsys.readouterr().out

    return command


def audited() -> list[tuple[str, str, str | None]]:
    with database.reading(database.connect(settings().control_url)) as connection:
        columns = audits.c.action, audits.c.reason, audits.c.approver
        return [tuple(row) for row in connection.execute(select(*columns).order_by(audits.c.number))]


def test_a_key_is_written_for_its_owner_alone_and_named_without_being_told(run):
    assert run() == "there is no key of pseudonyms\nsilver.orders stores pseudonyms of email\n"
    written = run("create-key", "--reason", "a study")
    file = settings().pseudonym_key
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(file.read_text())) == 32
    document = json.loads(run("--json"))
    assert document["tables"] == ["silver.orders"] and document["key"] in written
    assert file.read_text().strip() not in written + str(document)
    assert audited() == [("create pseudonym key", "a study", None)]


def test_a_key_that_is_there_is_not_replaced(run):
    run("create-key")
    before = settings().pseudonym_key.read_text()
    with pytest.raises(UsageError, match="destroy it first"):
        run("create-key")
    assert settings().pseudonym_key.read_text() == before


def test_a_destroyed_key_is_overwritten_where_it_lay_and_the_audit_says_who_agreed(run):
    run("create-key")
    file = settings().pseudonym_key
    with file.open("rb") as opened:
        output = run(*DESTROY, "--approved-by", "grace")
        # The deleted file, by the handle of who has it open.
        assert set(opened.read()) == {0}
    assert not file.exists()
    assert "restart driver 'main'" in output and "silver.orders is BROKEN" in output
    assert audited()[-1] == ("destroy pseudonym key", "the study is over", "grace")


@pytest.mark.parametrize("missing", ["--yes-destroy", "--reason"])
def test_nothing_is_destroyed_by_half_a_command(run, missing: str):
    run("create-key")
    place = DESTROY.index(missing)
    words = [*DESTROY[:place], *DESTROY[place + (2 if missing == "--reason" else 1) :]]
    with pytest.raises(UsageError, match="cannot be undone"):
        run(*words)
    assert settings().pseudonym_key.exists()
    assert len(audited()) == 1


def test_a_key_that_another_program_keeps_or_that_is_gone_is_not_claimed_to_be_destroyed(run, tmp_path: Path):
    with pytest.raises(UsageError, match="there is no key to destroy"):
        run(*DESTROY)
    (tmp_path / "mounted").write_text("k" * 64)
    settings().pseudonym_key.symlink_to(tmp_path / "mounted")
    with pytest.raises(UsageError, match="is a link to"):
        run(*DESTROY)
    assert (tmp_path / "mounted").read_text() == "k" * 64
    assert audited() == []
