"""A certificate names nobody, is written after a clean scan alone, and shows when it was changed."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from include.catalog import Catalog
from include.control import suppression
from include.control.jobs import store
from include.control.store import database
from include.erasure import certificate, requests
from include.erasure.requests import Request
from include.erasure.scan import Scan
from include.errors import FlowBroken, LedgerMismatch, UsageError
from include.settings import settings
from include.spec import Delta, Table

SUBJECT = "user-4711"
TABLES = Catalog(
    {"silver.t": Table(name="silver.t", comment="x", source=Delta("bronze.t"), schema="user STRING", subject="user")}
)


@pytest.fixture
def engine(tmp_path: Path, own_settings: Callable[..., None]):
    own_settings(SLUICE_HOME=tmp_path / "home", SLUICE_CONTROL_URL=f"sqlite:///{tmp_path / 'control.db'}")
    return database.connect(settings().control_url)


def plan(engine, *subjects: str):
    return requests.plan(engine, TABLES, Request(subjects), "eve", "asked for")


def test_a_certificate_names_nobody_and_shows_when_it_was_changed(engine):
    job, secret = plan(engine, SUBJECT), suppression.key()
    macs = requests.macs(requests.of(job), secret)
    file = certificate.write(job, TABLES, Scan(3, 400), "bob", macs, secret)
    document = certificate.read(file, secret)
    assert SUBJECT not in file.read_text()
    assert document["subjects"] == [suppression.mac(secret, SUBJECT)]
    assert (document["requested_by"], document["approved_by"]) == ("eve", "bob")
    file.write_text(file.read_text().replace('"bob"', '"ann"'))
    with pytest.raises(LedgerMismatch, match="its digest does not fit"):
        certificate.read(file, secret)


def test_nothing_is_certified_that_a_scan_has_found_or_could_not_read(engine):
    job, secret = plan(engine, SUBJECT), suppression.key()
    for found in (Scan(hits=Counter({"home/x": 1})), Scan(unread={"home/y": "torn"})):
        with pytest.raises(AssertionError):
            certificate.write(job, TABLES, found, "bob", [], secret)
    assert not certificate.file_of(job.number).exists()


def test_the_control_database_knows_only_hashes_and_the_names_go_with_the_job(engine, tmp_path):
    job = plan(engine, SUBJECT, "user-4712")
    assert job.message == "2 subjects"
    assert all(SUBJECT.encode() not in file.read_bytes() for file in tmp_path.glob("control.db*"))
    assert requests.of(job).subjects == (SUBJECT, "user-4712")
    assert requests.file_of(job.number).stat().st_mode & 0o077 == 0
    store.give_up(engine, job, "no more wanted")
    plan(engine, "user-4713")
    assert not requests.file_of(job.number).exists()
    with pytest.raises(UsageError, match="give that one up, and ask again"):
        requests.of(job)


def test_an_erasure_without_a_declared_subject_is_refused(engine):
    with pytest.raises(UsageError, match="declare `subject` in table files"):
        requests.plan(engine, Catalog({}), Request((SUBJECT,)), "eve", "x")


def test_the_list_takes_a_subject_once_and_is_bound_to_its_key(engine):
    suppression.create_key()
    secret = suppression.key()
    for expected in (1, 0):
        with database.transaction(engine) as connection:
            assert suppression.add(connection, [suppression.mac(secret, SUBJECT)], secret, 1) == expected
    assert suppression.listed(engine) == (secret, [suppression.mac(secret, SUBJECT)])
    assert suppression.key_file().stat().st_mode & 0o077 == 0
    suppression.key_file().unlink()
    with pytest.raises(FlowBroken, match="is missing"):
        suppression.listed(engine)
    suppression.create_key()
    with pytest.raises(FlowBroken, match="is another key"):
        suppression.listed(engine)


def test_a_certificate_is_of_json_that_programs_read(engine):
    job, secret = plan(engine, SUBJECT), suppression.key()
    file = certificate.write(job, TABLES, Scan(), "bob", [], secret)
    assert json.loads(file.read_text())["not_scanned"] == ["bin", "cache", "jars", "venv", "erasure"]
