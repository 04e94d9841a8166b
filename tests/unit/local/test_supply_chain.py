"""The bill of materials lists what is installed, with the digests it is checked against; the audit asks OSV's API."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from include.errors import SetupError, SluiceError, Unreachable
from include.local import advisories, artifacts, components, sbom
from include.local.advisories import Affected
from include.local.components import Component
from include.settings import settings
from tests.conftest import ROOT, free_port

TODAY = date(2026, 11, 29)
OURS = (
    Component("pypi", "", "requests", "2.34.2", "SHA-256", ("ab" * 32,), "Apache-2.0", "requirements.lock"),
    Component("maven", "org.xerial.snappy", "snappy-java", "1.1.10", "SHA-256", ("cd" * 32,), "", "pyspark"),
)
BAD = {"id": "GHSA-1111", "modified": "2026-11-20T10:00:00Z"}


@pytest.fixture(scope="module")
def found() -> list[Component]:
    return components.all_components(settings().jars)


@contextmanager
def osv(*answers: object) -> Iterator[tuple[str, list[dict]]]:
    """Serves these answers, one a request. Yields the address and the requests."""
    requests: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps(answers[len(requests) - 1]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def test_every_package_jar_and_script_is_listed_with_a_digest(found: list[Component]):
    purls = {component.purl.partition("@")[0] for component in found}
    locked = [line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    assert {f"pkg:pypi/{name.partition('[')[0]}" for name in locked} <= purls
    assert {f"pkg:maven/{jar.group}/{jar.name}" for jar in artifacts.listed_artifacts()} <= purls
    assert {"pkg:maven/org.apache.spark/spark-sql_2.13", "pkg:npm/idiomorph"} <= purls
    assert all(component.digests and component.version for component in found)
    shipped = {component.name for component in found if component.place == "pyspark"}
    assert len(shipped) > 200


def test_every_jar_has_coordinates_by_which_it_can_be_looked_up(found: list[Component]):
    jars = [component for component in found if component.kind == "maven"]
    assert [jar.purl for jar in jars if not jar.group] == []
    assert [jar.purl for jar in jars if "linux" in jar.version or not jar.version[0].isdigit()] == []


def test_the_bill_is_the_same_for_the_same_components(found: list[Component]):
    bill = sbom.document(found)
    assert bill == sbom.document(found) != sbom.document(found[1:])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    [pyarrow] = [entry for entry in bill["components"] if entry["name"] == "pyarrow"]
    assert pyarrow["licenses"] == [{"license": {"name": "Apache-2.0"}}]
    assert all(len(entry["content"]) == 64 for entry in pyarrow["hashes"])


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path):
    jar = artifacts.listed_artifacts()[0]
    (tmp_path / jar.class_path).mkdir()
    (tmp_path / jar.class_path / jar.jar).write_bytes(b"another one")
    with pytest.raises(SetupError, match=jar.sha256):
        components.all_components(tmp_path)


def test_a_package_without_a_digest_in_the_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lock = tmp_path / "requirements.lock"
    lock.write_text("requests==2.34.2\n")
    monkeypatch.setattr(components.install, "LOCK", lock)
    with pytest.raises(SetupError, match="no digest of requests"):
        components.all_components(tmp_path)


def test_an_affected_jar_and_its_advisory_are_named_with_the_age_of_the_advisory():
    with osv({"results": [{}, {"vulns": [BAD]}]}) as (address, requests):
        result = advisories.audit(OURS, address, {}, TODAY)
    assert [query["package"]["purl"] for query in requests[0]["queries"]] == [component.purl for component in OURS]
    [affected] = result.affected
    assert (affected.component, affected.name) == (OURS[1], "GHSA-1111")
    later = replace(result, asked_at=datetime(2026, 11, 29, 10, tzinfo=UTC))
    text = "\n".join(advisories.lines(later))
    assert "changed 9 days ago, on 2026-11-20" in text and "snappy-java@1.1.10 by GHSA-1111" in text
    old = replace(later, newest=datetime(2026, 9, 1, tzinfo=UTC))
    assert "whether it stands still" in "\n".join(advisories.lines(old))


def test_all_pages_of_an_answer_are_read():
    pages = ({"results": [{"next_page_token": "more"}, {}]}, {"results": [{"vulns": [BAD]}]})
    with osv(*pages) as (address, requests):
        assert len(advisories.audit(OURS, address, {}, TODAY).affected) == 1
    assert requests[1]["queries"] == [{"package": {"purl": OURS[0].purl}, "page_token": "more"}]


def test_an_accepted_advisory_passes_until_its_day(tmp_path: Path):
    file = tmp_path / "accepted.txt"
    file.write_text("# reasons\n\nGHSA-1111 2026-11-29 we never read XML\n")
    accepted = advisories.read_accepted(file)
    answer = {"results": [{}, {"vulns": [BAD]}]}
    with osv(answer, answer) as (address, _):
        assert advisories.audit(OURS, address, accepted, TODAY).affected == []
        assert len(advisories.audit(OURS, address, accepted, date(2026, 11, 30)).affected) == 1
    file.write_text("GHSA-1111 soon\n")
    with pytest.raises(SluiceError, match="GHSA-1111 soon"):
        advisories.read_accepted(file)


@pytest.mark.parametrize("answer", [{}, {"results": []}, {"error": "busy"}, ["no object"]])
def test_an_answer_that_is_none_of_osv_is_no_pass(answer: object):
    with osv(answer) as (address, _), pytest.raises(SluiceError, match="which is no pass"):
        advisories.audit(OURS, address, {}, TODAY)


def test_the_command_fails_where_nothing_answers_and_where_a_component_is_affected(
    monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(components, "all_components", lambda _: list(OURS))
    monkeypatch.setenv(advisories.ADDRESS_VARIABLE, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match="no advisory was looked up"):
        advisories.main()
    with osv({"results": [{}, {"vulns": [BAD]}]}, {"results": [{}, {}]}) as (address, _):
        monkeypatch.setenv(advisories.ADDRESS_VARIABLE, address)
        with pytest.raises(Affected):
            advisories.main()
        advisories.main()
    assert "no advisory about them" in capsys.readouterr().out


def test_a_jar_without_a_group_is_no_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(components, "all_components", lambda _: [OURS[0], replace(OURS[1], group="")])
    with osv({"results": [{}]}) as (address, _):
        monkeypatch.setenv(advisories.ADDRESS_VARIABLE, address)
        with pytest.raises(Unreachable, match="1 components were not looked up"):
            advisories.main()
