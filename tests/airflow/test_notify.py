"""Each incident causes one message, whatever the receiver does."""

import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from include.airflow.supervisor import notify
from include.cli.main import function_of
from include.control.commands import DESTRUCTIVE
from include.control.flows import incidents
from include.control.flows.alarms import ACTIONS, ALARMS, AlarmKind
from include.control.flows.decide import UNHEALTHY, State
from include.control.flows.incidents import Incident, Notice
from include.control.store import database
from include.errors import Unreachable, UsageError
from include.settings import settings
from tests.conftest import ROOT, free_port

FLOW = "silver.tracker_readings"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    control_engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    yield control_engine
    control_engine.dispose()


def command(incident: Incident) -> str:
    return notify.message(Notice((incident,)))["command"]


def begin(engine: Engine, reason: str = "alive, and without a sign of progress for 130 s") -> None:
    with database.transaction(engine) as connection:
        incidents.begin(connection, FLOW, State.STUCK, reason)


def end(engine: Engine) -> None:
    with database.transaction(engine) as connection:
        incidents.end(connection, FLOW)


def test_an_incident_is_one_message_however_often_it_is_seen_and_the_next_one_another(engine, receiver):
    for _ in range(3):
        begin(engine)
        assert notify.notify_all(engine) == 0
    assert len(receiver.messages) == 1
    end(engine)
    for _ in range(3):
        assert notify.notify_all(engine) == 0
    assert [message["is_over"] for message in receiver.messages] == [False, True]
    assert receiver.messages[1]["number"] == receiver.messages[0]["number"]
    begin(engine)
    notify.notify_all(engine)
    assert len(receiver.messages) == 3


def test_nine_flows_of_a_driver_that_ended_are_one_message_and_their_end_is_another(engine, receiver):
    flows = [f"silver.t{number}" for number in range(9)]
    with database.transaction(engine) as connection:
        for flow in flows:
            incidents.begin(connection, flow, State.BACKING_OFF, "its driver ended", cause="driver main")
    notify.notify_all(engine)
    for flow in flows:
        with database.transaction(engine) as connection:
            incidents.end(connection, flow)
        notify.notify_all(engine)
    begun, over = receiver.messages
    assert (begun["cause"], begun["subjects"], begun["is_over"]) == ("driver main", flows, False)
    assert "BACKING OFF driver main (9 flows): its driver ended" in begun["text"]
    assert shlex.split(begun["command"])[:4] == ["sluice", "restart", "--driver", "main"]
    assert (over["cause"], over["is_over"]) == ("driver main", True)


def test_a_message_names_the_platform_the_time_and_where_to_look(engine, receiver, monkeypatch):
    monkeypatch.setenv("SLUICE_PLATFORM_NAME", "berlin")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/base/")
    settings.cache_clear()
    begin(engine)
    notify.notify_all(engine)
    settings.cache_clear()
    (message,) = receiver.messages
    assert message["text"].startswith(f"[berlin] STUCK {FLOW}: ")
    assert (message["platform"], message["link"]) == ("berlin", "https://airflow.example/base/dags/supervise")
    assert re.search(r"^Since \d{4}-\d\d-\d\d \d\d:\d\dZ$", message["text"], re.MULTILINE)


def test_the_message_says_what_is_wrong_what_to_do_and_where_to_read(engine, receiver):
    begin(engine)
    notify.notify_all(engine)
    (message,) = receiver.messages
    command = message["command"]
    lines = message["text"].splitlines()
    assert lines[0].endswith(f"] STUCK {FLOW}: alive, and without a sign of progress for 130 s")
    assert lines[2:4] == [f"Do: {command}", "Read: docs/runbooks/stuck.md"]
    assert (message["target"], message["state"], message["runbook"]) == (FLOW, "STUCK", "docs/runbooks/stuck.md")
    assert shlex.split(command) == ["sluice", "restart", FLOW, "--reason", "incident 1"]
    assert receiver.headers["Authorization"] == "Bearer hush"
    assert receiver.headers["X-Team"] == "streams"


@pytest.mark.parametrize(("error", "action"), sorted(ACTIONS.items()))
def test_what_only_a_reset_cures_comes_with_that_command(error: str, action: str):
    incident = Incident(7, FLOW, State.BROKEN, "the checkpoint does not fit", error=f"{error}.SOME_SUBCLASS")
    assert action in {str(destructive_action) for destructive_action in DESTRUCTIVE}
    assert f'"action": "{action}"' in command(incident)


def test_a_window_that_failed_comes_with_the_command_that_tries_again(dags):
    incident = Incident(7, FLOW, "WINDOW FAILED", "its window did not finish: the disk is full")
    *start, dag, option, form = shlex.split(command(incident))
    assert (start, option) == (["airflow", "dags", "trigger"], "-c")
    assert json.loads(form)["table"] in dags[dag].params.get_param("table").schema["enum"]
    assert (
        """Do: airflow dags trigger maintain -c '{"table": "silver.tracker_readings"}'\n"""
        "Read: docs/runbooks/window-failed.md\n"
    ) in notify.message(Notice((incident,)))["text"]


@pytest.mark.parametrize("table", [FLOW, "quarantine.silver_tracker_readings"])
def test_whoever_holds_vacuum_back_is_found_by_the_command_that_comes_with_it(engine, table: str):
    incident = Incident(7, table, "HELD BACK", "gold.heart_rate_by_model has needed version 4 for 800 h")
    assert notify.message(Notice((incident,)))["runbook"] == "docs/runbooks/held-back.md"
    program, *arguments = shlex.split(command(incident))
    environment = {**os.environ, "SLUICE_CONTROL_URL": str(engine.url)}
    result = subprocess.run(
        [sys.executable, "-m", "include.cli", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert program == "sluice"
    assert (result.returncode, result.stdout) == (0, f"{FLOW} is not stored yet\n"), result.stderr


def test_a_receiver_that_is_away_gets_it_later(engine, receiver):
    receiver.stop()
    begin(engine)
    assert notify.notify_all(engine) == notify.UNDELIVERED
    receiver.start()
    receiver.status = 503
    assert notify.notify_all(engine) == notify.UNDELIVERED
    receiver.status = 200
    assert notify.notify_all(engine) == 0
    assert [message["target"] for message in receiver.messages] == [FLOW]


def test_a_receiver_that_is_silent_is_waited_for_once_and_not_for_each_incident(engine, receiver, monkeypatch):
    monkeypatch.setattr(notify, "TIMEOUT_SECONDS", 0.2)
    for flow in ("bronze.a", "bronze.b", "bronze.c"):
        with database.transaction(engine) as connection:
            incidents.begin(connection, flow, State.STUCK, "why")
    receiver.stop()
    with socket.create_server(("127.0.0.1", receiver.port), backlog=10) as silent:
        assert notify.notify_all(engine) == notify.UNDELIVERED
        silent.setblocking(False)
        with silent.accept()[0], pytest.raises(BlockingIOError):
            silent.accept()
    receiver.start()
    assert notify.notify_all(engine) == 0
    assert len(receiver.messages) == 3


def test_a_message_that_the_receiver_refuses_holds_up_no_other_and_is_sent_again(engine, receiver, caplog):
    for flow in ("bronze.a", "bronze.b", "bronze.c"):
        with database.transaction(engine) as connection:
            incidents.begin(connection, flow, State.STUCK, "why")
    receiver.refused_text = "bronze.b"
    assert notify.notify_all(engine) == notify.UNDELIVERED
    assert [message["target"] for message in receiver.messages] == ["bronze.a", "bronze.c"]
    assert "did not take the message about bronze.b (HTTP 400): it is sent again" in caplog.text
    receiver.refused_text = None
    assert notify.notify_all(engine) == 0
    assert [message["target"] for message in receiver.messages] == ["bronze.a", "bronze.c", "bronze.b"]


def test_what_was_over_before_anybody_could_be_told_says_so(engine, receiver):
    begin(engine)
    end(engine)
    notify.notify_all(engine)
    (message,) = receiver.messages
    assert message["is_over"] is True
    assert f"] OVER: STUCK {FLOW}: " in message["text"]


def test_a_receiver_that_never_answers_holds_nobody_up(engine, monkeypatch, caplog):
    monkeypatch.setattr(notify, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    begin(engine)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("AIRFLOW_CONN_SLUICE_ALERTS", json.dumps({"conn_type": "http", "host": url}))
        assert notify.notify_all(engine) == notify.UNDELIVERED
    assert "did not take the message" in caplog.text
    assert incidents.unsent(engine)


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirection_is_not_followed_because_it_would_carry_the_token_away(status, receiver):
    receiver.status = status
    with pytest.raises(Unreachable, match=f"HTTP {status}"):
        notify.notify(Notice((Incident(1, FLOW, "STUCK", "why"),)))
    assert receiver.messages == []


def test_no_token_and_no_url_gets_into_an_error(monkeypatch):
    connection = {"conn_type": "http", "host": f"http://127.0.0.1:{free_port()}/hooks/s3cret", "password": "hush\nhush"}
    monkeypatch.setenv("AIRFLOW_CONN_SLUICE_ALERTS", json.dumps(connection))
    with pytest.raises(Unreachable) as password_error:
        notify.notify(Notice((Incident(1, FLOW, "STUCK", "why"),)))
    monkeypatch.setenv("AIRFLOW_CONN_SLUICE_ALERTS", json.dumps({**connection, "password": "hush"}))
    with pytest.raises(Unreachable) as connection_error:
        notify.notify(Notice((Incident(1, FLOW, "STUCK", "why"),)))
    for error in (password_error.value, connection_error.value):
        assert error.__suppress_context__
        assert "hush" not in str(error)
        assert "s3cret" not in str(error)


def test_without_a_connection_what_lasts_waits_for_one_and_what_is_over_is_forgotten(
    engine, receiver, monkeypatch, caplog
):
    with monkeypatch.context() as patch:
        patch.delenv("AIRFLOW_CONN_SLUICE_ALERTS")
        begin(engine, "the first")
        end(engine)
        begin(engine, "the second")
        assert notify.notify_all(engine) == notify.NO_CONNECTION
        output = caplog.text
        assert output.count("airflow connections add sluice_alerts") == 1
    assert notify.notify_all(engine) == 0
    assert ["the second" in message["text"] for message in receiver.messages] == [True]


def test_a_connection_may_be_given_as_a_uri(receiver, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_SLUICE_ALERTS", receiver.url)
    notify.notify(Notice((Incident(1, FLOW, "STUCK", "why"),)))
    assert len(receiver.messages) == 1


@pytest.mark.parametrize("host", ["", "ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_only_http_leaves_the_house(host, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_SLUICE_ALERTS", json.dumps({"conn_type": "http", "host": host}))
    with pytest.raises(UsageError, match="has no host that begins with http:// or https://"):
        notify.notify(Notice((Incident(1, FLOW, "STUCK", "why"),)))


@pytest.mark.parametrize("kind", AlarmKind)
def test_every_kind_of_alarm_has_a_page_and_a_command_that_exists(kind: AlarmKind, dags):
    subject = "supervise" if ALARMS[kind].runbook == "supervisor" else FLOW
    message = notify.message(Notice((Incident(1, subject, kind, "why"),)))
    assert (ROOT / message["runbook"]).read_text().startswith("# ")
    match shlex.split(message["command"]):
        case ["sluice", name, *arguments]:
            # Raises for a command that does not exist.
            assert callable(function_of(name))
            assert arguments in ([], [FLOW], [FLOW, "--reason", "incident 1"])
        case ["airflow", "dags", verb, *arguments]:
            assert verb in ("trigger", "unpause", "list-runs", "list-import-errors")
            assert [argument for argument in arguments[:1] if argument not in dags] == []
        case ["python", "-m", module]:
            assert importlib.util.find_spec(module)
        case other:
            pytest.fail(f"{other} is no command of Sluice or Airflow")


def test_every_unhealthy_state_is_an_alarm_of_its_name():
    assert {state.name for state in UNHEALTHY} == {state.name for state in State} & {kind.name for kind in AlarmKind}
