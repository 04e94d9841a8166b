"""What the pages say about flows and tables, from a stored snapshot."""

import html
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from include.console import app, report
from include.console.viewer import Approval, Viewer
from include.control.flows import incidents
from include.control.store import database
from include.control.supervision.troubles import Trouble
from include.monitoring import snapshot
from include.monitoring.snapshot import FlowReport, Snapshot, TableDetails, TableSnapshot
from include.settings import settings
from tests.support import console
from tests.support.progress_reports import report as report_of

ATTACK = "<script>alert(1)</script>"
RUNBOOK = "docs/runbooks/stuck.md"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return database.connect(f"sqlite:///{tmp_path / 'control.db'}")


@pytest.fixture
def client(engine: Engine) -> TestClient:
    return TestClient(app.create(lambda: Viewer("ann", True), lambda: engine))


def flows(engine: Engine, *listed: dict) -> float:
    """Stores a snapshot of flows, each with what differs from a healthy one."""
    at = console.now(engine)
    stored = [console.flow(values.pop("flow"), 0, at, **values) for values in listed]
    console.store(engine, Snapshot(at, flows=tuple(stored)))
    return at


def rows(text: str) -> list[str]:
    return [part.split("</tr>")[0] for part in text.split('<tr id="')[1:]]


def test_the_board_begins_with_how_many_flows_need_a_person_and_lists_the_worst_first(client, engine):
    at = console.now(engine)
    stored = [
        console.flow("silver.good", 0, at),
        console.flow("silver.bad", 0, at, state="BROKEN", reason="a rule broke"),
    ]
    trouble = Trouble("BROKEN", "silver.bad", "silver.bad", at, "a rule broke", "x", "x", "r", flows=("silver.bad",))
    console.store(engine, Snapshot(at, flows=tuple(stored), troubles=(trouble,)))
    text = client.get("/").text
    assert "1 of 2 flows needs you: BROKEN silver.bad." in text
    first, second = rows(text)
    assert first.startswith("silver.bad") and "a rule broke" in first
    assert second.startswith("silver.good")


def actions(text: str) -> list[str]:
    """What the buttons of a page do, in their order."""
    return re.findall(r'data-action="([^"]*)"', text)


def test_board_flow_and_incident_offer_the_same_action(client, engine):
    at = console.now(engine)
    broken = {"state": "BROKEN", "action": "reset checkpoint", "alarm": "BROKEN"}
    trouble = Trouble(
        *("BROKEN", "silver.a", "silver.a", at, "a file is gone", "x", "x", RUNBOOK),
        flows=("silver.a",),
        action="reset checkpoint",
    )
    console.store(engine, Snapshot(at, flows=(console.flow("silver.a", 0, at, **broken),), troubles=(trouble,)))
    assert actions(client.get("/").text) == ["reset checkpoint"]
    assert actions(client.get("/incidents").text) == ["reset checkpoint", "acknowledge"]
    assert actions(client.get("/flow/silver.a").text)[:2] == ["reset checkpoint", "restart"]
    assert 'href="incidents?subject=silver.a">runbook' in client.get("/").text


def test_a_stopped_flow_offers_only_what_its_decision_allows(client, engine):
    held, stopped = {"flow": "silver.a"}, {"flow": "silver.b", "action": "start"}
    flows(engine, *({**flow, "state": "STOPPED", "wanted": "stopped", "driver": ""} for flow in (held, stopped)))
    assert actions(client.get("/flow/silver.a").text) == []
    assert actions(client.get("/flow/silver.b").text) == ["start"]
    assert actions(client.get("/").text) == ["start"]


def test_a_flow_that_has_ended_shows_no_rates_and_no_phase(client, engine):
    now = {"phase": "writes a batch", "rows_in_per_second": 123.0, "rows_out_per_second": 123.0}
    flows(engine, {"flow": "silver.a", "state": "BROKEN", **now}, {"flow": "silver.b", "state": "HEALTHY", **now})
    broken, healthy = rows(client.get("/").text)
    assert "writes a batch" in healthy and "123, 123" in healthy
    assert "writes a batch" not in broken and "123" not in broken


def test_the_board_leaves_to_the_page_of_the_flow_why_its_lag_is_unknown(client, engine):
    flows(engine, {"flow": "silver.a", "unknown": "its log has a hole", "lag_words": "unknown: its log has a hole"})
    assert "its log has a hole" not in client.get("/").text
    assert "its log has a hole" in client.get("/flow/silver.a").text


def test_the_incidents_of_one_dead_driver_are_one_line_once_they_are_over(client, engine):
    subjects = [f"silver.of_driver_{number}" for number in range(3)]
    for round_ in range(2):
        with database.transaction(engine) as connection:
            for subject in subjects:
                incidents.begin(connection, subject, "BACKING OFF", f"it died, {round_}", cause="driver of_over")
            for subject in subjects:
                incidents.end(connection, subject)
    text = client.get("/incidents").text
    assert text.count("driver of_over (3 flows)") == 2
    assert not any(subject in text for subject in subjects)


def test_whoever_may_not_trigger_sees_no_button_on_any_page(engine):
    client = TestClient(app.create(lambda: Viewer("eve", False), lambda: engine))
    flows(engine, {"flow": "silver.a", "state": "BROKEN"})
    for path in ("/", "/flow/silver.a", "/incidents"):
        text = client.get(path).text
        assert "data-action" not in text and "<dialog" not in text


def test_filters_are_in_the_address(client, engine):
    flows(engine, {"flow": "silver.a", "state": "STUCK"}, {"flow": "bronze.a"}, {"flow": "gold.b", "driver": "two"})
    found = {query: [row.partition('"')[0] for row in rows(client.get(f"/?{query}").text)] for query in QUERIES}
    assert found == QUERIES


QUERIES = {
    "": ["silver.a", "bronze.a", "gold.b"],
    "state=STUCK": ["silver.a"],
    "layer=bronze": ["bronze.a"],
    "driver=two": ["gold.b"],
    "q=.A": ["silver.a", "bronze.a"],
    "q=.a&layer=gold": [],
}


def test_an_old_snapshot_is_shown_as_unknown_since_its_time(client, engine):
    at = console.now(engine)
    console.store(engine, console.synthetic(3, at))
    fresh = client.get("/")
    assert "As of" in fresh.text and "Unknown since" not in fresh.text
    console.store(engine, console.synthetic(3, at - 200))
    old = client.get("/", headers={"If-None-Match": fresh.headers["etag"]})
    assert old.status_code == 200 and "Unknown since" in old.text


def test_the_board_is_sent_again_once_there_is_another_snapshot(client, engine):
    at = console.now(engine)
    console.store(engine, console.synthetic(3, at - 2))
    tag = client.get("/").headers["etag"]
    assert client.get("/", headers={"If-None-Match": tag}).status_code == 304
    console.store(engine, console.synthetic(3, at - 1))
    assert client.get("/", headers={"If-None-Match": tag}).status_code == 200


def test_the_page_of_a_flow_draws_its_history_with_its_restarts(client, engine):
    console.store(engine, console.synthetic(3, console.now(engine)), minutes=50)
    text = client.get("/flow/bronze.orders_of_region_0").text
    for title in ("Unread", "Age of the oldest unread", "Rows a second", "Batches"):
        assert f'<svg viewBox="0 0 720 164" role="img" aria-label="{title}">' in text
    assert "<title>restart</title>" in text


def test_a_restart_of_a_flow_is_told_from_that_of_its_driver(client, engine):
    flows(engine, {"flow": "silver.a", "driver": "main"})
    text = client.get("/flow/silver.a").text
    assert ">restart<" in text and ">restart driver<" in text


def test_the_page_of_a_flow_ends_with_the_log_of_its_driver_and_no_other_file(client, engine, home):
    settings().logs.mkdir()
    (settings().logs / "driver-main.log").write_text(f"first\n{ATTACK}\n" + "later\n" * 100)
    (home / "driver-secret.log").write_text("secret")
    flows(engine, {"flow": "silver.a", "driver": "main"}, {"flow": "silver.b", "driver": "x/../../driver-secret"})
    text = client.get("/flow/silver.a").text
    assert text.count("later") == 100 and "first" not in text
    assert "secret</pre>" not in client.get("/flow/silver.b").text


def test_comments_reasons_and_names_are_shown_and_never_run(client, engine):
    at = console.now(engine)
    bad = console.flow("silver.a", 0, at, state="BROKEN", reason=ATTACK, next_step=ATTACK, phase=ATTACK, host=ATTACK)
    table = TableSnapshot("silver.a", comment=ATTACK, owner=ATTACK, flows=("silver.a",))
    details = TableDetails(
        "silver.a",
        at,
        columns=({"name": ATTACK, "type": "INT", "comment": ATTACK},),
        quarantine=({"rules": [ATTACK], "reason": ATTACK, "flow": ATTACK, "batch": 1, "at": at, "origin": ATTACK},),
        unknown={ATTACK: ATTACK},
        readers=(ATTACK,),
    )
    stored = replace(console.synthetic(0, at), flows=(bad,), tables=(table,))
    console.store(engine, stored, details=[details])
    for path in (
        "/",
        "/flow/silver.a",
        "/table/silver.a",
        "/tables",
        "/graph",
        f"/?q={ATTACK}",
        f"/graph?table={ATTACK}",
    ):
        text = client.get(path).text
        assert ATTACK not in text, path
        assert " onerror=" not in text
    assert "&lt;script&gt;" in client.get("/table/silver.a").text


def test_the_page_of_a_flow_marks_where_its_definition_changes(engine):
    at = console.now(engine)
    for number, definition in enumerate(["abc", "abc", None, "def"]):
        stored = console.flow("silver.a", 0, at, behind=1, definition=definition)
        console.store(engine, Snapshot(at - 300 + 60 * number, flows=(stored,)))
    text = TestClient(app.create(lambda: Viewer("ann", True), lambda: engine)).get("/flow/silver.a").text
    chart = text.split('aria-label="Unread"')[1].split("</svg>")[0]
    assert chart.count('class="mark definition"') == 1 and "<title>definition def</title>" in chart


def test_the_page_of_a_flow_shows_what_its_query_reported_in_groups_and_as_json(client, engine):
    at = console.now(engine)
    progress = report_of(3, sources=[{"description": ATTACK, "endOffset": {"t": {"0": 9}}, "metrics": {"lag": "4"}}])
    progress["stateOperators"] = [{"operatorName": "dedupe", "numRowsTotal": 77}]
    progress["observedMetrics"] = {"seen": {"late": 5}}
    stored = Snapshot(at, flows=(console.flow("silver.a", 0, at),))
    snapshot.store(engine, stored, reports=[FlowReport("silver.a", at, 2, 3, json.dumps(progress))])
    text = client.get("/flow/silver.a").text
    assert ATTACK not in text
    shown = re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", html.unescape(text.split("Query progress")[1]))
    expected = {"addBatch": "1191", "inputRowsPerSecond": "93.4", "endOffset": '{"t": {"0": 9}}', "metrics lag": "4"}
    expected |= {"numRowsTotal": "77", "sink description": "ForeachBatchSink", "observed seen late": "5"}
    assert expected.items() <= dict(shown).items()
    raw = text.split('aria-label="report as JSON">')[1].split("</pre>")[0]
    assert json.loads(html.unescape(raw)) == progress


def test_a_report_that_is_no_report_is_left_out(client, engine):
    at = console.now(engine)
    stored = Snapshot(at, flows=(console.flow("silver.a", 0, at),))
    for raw in ("", "[]", "{}", '{"sources": 3, "durationMs": "x"}'):
        snapshot.store(engine, stored, reports=[FlowReport("silver.a", at, 2, 3, raw)])
        assert client.get("/flow/silver.a").status_code == 200


def version(number: int, reads: str, above: tuple[str, int] | None) -> dict:
    shared = {"at": 1.0, "operation": "WRITE", "kind": "batch", "batch": "0/1", "rows": 1, "files": 1, "bytes": 1}
    return {"version": number, "flow": "a flow", "reads": reads, "above": above, **shared}


def test_the_trail_of_a_version_leads_up_as_far_as_versions_are_stored(client, engine):
    at = console.now(engine)
    tables = tuple(TableSnapshot(name, is_stored=True, version=7) for name in ("silver.a", "bronze.a"))
    details = [
        TableDetails("silver.a", at, versions=(version(7, "bronze.a up to version 3", ("bronze.a", 3)),)),
        TableDetails("bronze.a", at, versions=(version(3, "orders/0 5 to 9", None),)),
    ]
    console.store(engine, Snapshot(at, tables=tables), details=details)
    trail = client.get("/table/silver.a?version=7").text.split("Trail of a row")[1].split("Files by size")[0]
    assert "bronze.a up to version 3" in trail and "orders/0 5 to 9" in trail
    assert "<code>sluice explain silver.a --version 7</code>" in trail
    assert "Version 6 of silver.a is not among its stored versions" in client.get("/table/silver.a?version=6").text
    for nonsense in ("x", "-1", "9" * 30, ATTACK):
        assert client.get("/table/silver.a", params={"version": nonsense}).status_code == 200


def test_the_cost_of_a_day_is_listed_by_flow_the_most_expensive_first(client, engine):
    at = console.now(engine)
    listed = [
        console.flow(f"silver.{name}", 0, at, cpu_ms=ms, bytes_written=10) for name, ms in (("a", 100), ("b", 900))
    ]
    unmeasured = console.flow("silver.c", 0, at)
    console.store(engine, Snapshot(at, flows=(*listed, unmeasured)))
    text = client.get("/cost").text
    assert "1 CPU seconds, 20 B written" in text
    assert re.findall(r'href="flow/(silver\.\w)"', text) == ["silver.b", "silver.a", "silver.c"]
    assert "90 %" in text and text.count("unknown") == 2
    assert client.get("/cost?day=1999-01-01").status_code == 200


@pytest.mark.parametrize(
    ("dag", "form", "place"),
    [
        ("maintain", {"table": "silver.a"}, "../../../table/silver.a"),
        ("control.stream", {"flow": "silver.a"}, "../../../flow/silver.a"),
        ("control.stream", {"driver": "main", "flow": None}, "../../../?driver=main"),
        ("backfill.silver.a", {}, "../../../table/silver.a"),
        ("full_refresh", {"table": "silver.gone"}, "../../../jobs?kind=backfill"),
        ("supervise", {}, "../../../"),
        ("orders_of_the_shop", {"table": "silver.a"}, "../../../table/silver.a"),
    ],
)
def test_a_tab_of_airflow_leads_to_the_page_of_what_its_run_names(engine, dag, form, place):
    @dataclass(frozen=True)
    class Asker(Viewer):
        def form(self, _dag: str, _run: str) -> dict:
            return form

    at = console.now(engine)
    stored = Snapshot(at, flows=(console.flow("silver.a", 0, at),), tables=(TableSnapshot("silver.a"),))
    console.store(engine, stored)
    client = TestClient(app.create(lambda: Asker("ann", True), lambda: engine), follow_redirects=False)
    assert client.get(f"/dag/{dag}/run/x").headers["location"] == place


def test_a_tab_of_another_dag_says_that_it_is_none_of_sluice(client):
    answer = client.get("/dag/orders_of_the_shop")
    assert answer.status_code == 404 and "is not of Sluice" in answer.text


QUARANTINED = {"rules": ["plausible"], "reason": None, "flow": "silver.a", "batch": "0/1", "at": 1.0, "origin": {}}


def quarantine_page(engine: Engine, viewer: Viewer, refusal: str = "") -> str:
    at = console.now(engine)
    table = TableSnapshot("silver.a", flows=("silver.a",), is_stored=True)
    details = TableDetails("silver.a", at, quarantine=(QUARANTINED,), broken_rules={"a 'rule'": 3})
    stored = replace(console.synthetic(0, at), flows=(console.flow("silver.a", 0, at),), tables=(table,))
    console.store(engine, stored, details=[replace(details, replay_refusal=refusal)])
    return TestClient(app.create(lambda: viewer, lambda: engine)).get("/table/silver.a").text


def test_a_quarantine_is_replayed_from_its_page_whole_or_by_rule(engine):
    text = quarantine_page(engine, Viewer("ann", True, may_replay=True))
    asked = [json.loads(html.unescape(conf)) for conf in re.findall('data-dag="replay" data-conf="([^"]*)"', text)]
    assert asked == [{"table": "silver.a", "rule": None}, {"table": "silver.a", "rule": "a 'rule'"}]


def test_nobody_is_offered_a_replay_that_is_refused_or_not_theirs_to_ask_for(engine):
    assert 'data-dag="replay"' not in quarantine_page(engine, Viewer("ann", True))
    text = quarantine_page(engine, Viewer("ann", True, may_replay=True), refusal="backfill its range")
    assert 'data-dag="replay"' not in text and "backfill its range" in text


def approval(**changed: object) -> Approval:
    known = Approval("silver.a: back to noon?", f"- version 7 {ATTACK}", "rewind/x", "dags/r", "silver.a", "bob", 1.0)
    return replace(known, **changed)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Approver(Viewer):
    waiting: tuple[Approval, ...] = ()

    def approvals(self) -> tuple[Approval, ...]:
        return self.waiting


def jobs_page(engine: Engine, *waiting: Approval) -> str:
    viewer = Approver("ann", False, may_approve=True, waiting=waiting)
    return TestClient(app.create(lambda: viewer, lambda: engine)).get("/jobs").text


def test_a_job_that_waits_for_approval_shows_its_plan_and_two_buttons(engine):
    text = jobs_page(engine, approval(may_answer=True))
    assert "silver.a: back to noon?" in text and "<li>version 7" in text and "by bob" in text
    assert ATTACK not in text and "<dialog" in text
    assert re.findall('data-action="([A-Za-z]+)"', text) == ["Approve", "Reject"]
    assert text.count('data-approval="rewind/x"') == 2


def test_whoever_asked_for_a_job_may_reject_it_and_not_approve_it(engine):
    text = jobs_page(engine, approval(may_answer=True, is_own=True))
    assert re.findall('data-action="([A-Za-z]+)"', text) == ["Reject"]
    assert "another user has to approve it" in text


def test_whoever_may_not_answer_sees_the_plan_without_buttons(engine):
    text = jobs_page(engine, approval())
    assert "<li>version 7" in text and "data-action" not in text


def test_an_unknown_name_is_refused_with_the_nearest_one(client, engine):
    console.store(engine, console.synthetic(3, console.now(engine)))
    answer = client.get("/flow/bronze.orders_of_region_9")
    assert answer.status_code == 404
    assert "bronze.orders_of_region_0" in answer.text
    assert client.get("/table/nothing").status_code == 404


def test_the_console_works_below_any_prefix_because_its_links_are_relative(engine):
    flows(engine, {"flow": "silver.a"})
    text = TestClient(app.create(lambda: Viewer("ann", True), lambda: engine)).get("/flow/silver.a").text
    assert 'href="/' not in text and 'src="/' not in text
    assert 'href="../static/console.css' in text


def test_the_report_is_one_file_that_loads_and_runs_nothing(engine):
    at = console.now(engine)
    bad = console.flow("silver.a", 0, at, state="STUCK")
    trouble = Trouble("STUCK", "silver.a", "silver.a", at, ATTACK, "x", "x", RUNBOOK, flows=("silver.a",))
    console.store(engine, replace(console.synthetic(6, at, [trouble]), flows=(bad,)))
    text = report.as_html(engine)
    assert "1 of 1 flows needs you" in text and "bronze.orders_of_region_0" in text
    assert not re.search(r"<script|<link|<img|\ssrc=|url\(", text)


def test_a_report_of_an_empty_database_says_so(engine):
    assert "has not stored a snapshot yet" in report.as_html(engine)
