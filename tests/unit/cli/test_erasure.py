"""`sluice erase` shows where a subject lies, plans its erasure, and checks a certificate again."""

import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from include import catalog
from include.catalog import Catalog
from include.cli import erasure
from include.cli.erasure import What
from include.control import suppression, vacuum_holds
from include.control.jobs import store
from include.control.jobs.store import StoredJob
from include.control.store import database
from include.erasure import certificate, requests
from include.erasure.scan import Scan
from include.errors import LedgerMismatch, UsageError
from include.settings import settings
from include.spec import Delta, Table

SUBJECT = "user-4711"
TABLES = Catalog(
    {"silver.t": Table(name="silver.t", comment="x", source=Delta("bronze.t"), schema="user STRING", subject="user")}
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, own_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a log about the subject, and a table that declares whose its rows are."""
    own_settings(SLUICE_HOME=tmp_path / "home", SLUICE_CONTROL_URL=f"sqlite:///{tmp_path / 'control.db'}")
    monkeypatch.setattr(catalog, "load", lambda: TABLES)
    log = settings().logs / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"INFO {SUBJECT}, {SUBJECT}\n")
    return settings().home


def planned() -> StoredJob:
    erasure.erase(subject=[SUBJECT], reason="asked for")
    return store.get(database.connect(settings().control_url), StoredJob, 1, requests.KIND)


def test_a_dry_run_names_each_place_with_its_count_and_plans_nothing(capsys):
    vacuum_holds.register(database.connect(settings().control_url), "ann", "silver.t", 3, hours=1, requester="ann")
    erasure.erase(subject=[SUBJECT], dry_run=True, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["hits"] == {"home/log/driver.log": 2}
    assert shown["readers"] == {"ann": "silver.t since version 3"}
    assert not requests.file_of(1).exists()


def test_a_plan_says_how_to_go_on_and_names_nobody(capsys):
    job = planned()
    assert "--number 1 --approved-by NAME" in (text := capsys.readouterr().out)
    assert SUBJECT not in text
    assert requests.of(job).subjects == (SUBJECT,)


def test_keys_may_come_from_the_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SUBJECT}\n\nuser-4712\n"))
    erasure.erase(subject=["user-4713", "-"], reason="asked for")
    job = store.get(database.connect(settings().control_url), StoredJob, 1, requests.KIND)
    assert requests.of(job).subjects == ("user-4713", SUBJECT, "user-4712")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"subject": None, "reason": "x"}, "--subject is missing"),
        ({"subject": [SUBJECT]}, "--reason is missing"),
        ({"subject": ["ada"], "reason": "x"}, "name one of at least 4 characters"),
        ({"subject": [SUBJECT], "what": What.VERIFY, "file": Path("none.json")}, "is no certificate"),
    ],
)
def test_what_is_missing_or_too_short_is_named(arguments, sentence):
    with pytest.raises(UsageError, match=sentence):
        erasure.erase(**arguments)


def test_a_certificate_holds_as_long_as_the_subject_is_gone(home, capsys):
    job, secret = planned(), suppression.key()
    file = certificate.write(job, TABLES, Scan(1, 2, Counter()), "bob", [suppression.mac(secret, SUBJECT)], secret)
    with pytest.raises(LedgerMismatch, match=r"home/log/driver\.log: 2 times"):
        erasure.erase(What.VERIFY, file, subject=[SUBJECT])
    (home / "log" / "driver.log").write_text("INFO nobody\n")
    erasure.erase(What.VERIFY, file, subject=[SUBJECT])
    assert "is unchanged, and of these subjects" in capsys.readouterr().out
    with pytest.raises(UsageError, match="names others than the 1 of"):
        erasure.erase(What.VERIFY, file, subject=["user-4712"])
