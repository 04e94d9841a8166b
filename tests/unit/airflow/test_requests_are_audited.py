"""Whatever a person asks for is in the audit, with who, why and who approved it: each DAG, action and command."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowSkipException
from deltalake import CommitProperties, write_deltalake
from sqlalchemy import Engine, Row, select

from include import access, catalog
from include.access import Place
from include.airflow import controls, erasure, jobs, maintenance
from include.airflow.approvals import APPROVE, REJECT
from include.airflow.run import Run
from include.catalog import Catalog
from include.cli import main as cli
from include.control import accepted_differences, personal_data, pseudonym_key
from include.control.jobs import backfills, rewinds
from include.control.store import database
from include.control.store.schema import audits
from include.engine.jobs import window
from include.erasure import requests
from include.erasure.requests import Request
from include.errors import SluiceError
from include.lake import locations
from include.project.ranges import Slice
from include.settings import settings
from include.spec import Delta, Table
from tests.support import lake

WHO, WHY, OTHER = "ada", "because of a test", "grace"
BRONZE, TABLE, VIEW = "bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_day"
OF_SUBJECTS = Catalog(
    {"silver.t": Table(name="silver.t", comment="x", source=Delta("bronze.t"), schema="user STRING", subject="user")}
)
Ask = Callable[[Engine, dict[str, Any]], object]


def answer(option: str) -> dict[str, Any]:
    return {"chosen_options": [option], "responded_by_user": {"id": "1", "name": OTHER}}


def run(**form: Any) -> Run:
    return Run("manual", form, WHO, None, None, None)


def by_form(action: str, **target: str) -> Ask:
    form = {"flow": None, "driver": None, "action": action, "reason": WHY, **target}

    def ask(engine: Engine, answered: dict[str, Any]) -> None:
        command = controls.command(form, WHO)
        is_approved = action in access.APPROVED_ACTIONS
        approved = controls.approved_state(command) if is_approved else None
        controls.run_command(engine, command, approved, answered if is_approved else None)

    return ask


def by_command(*words: str) -> Ask:
    def ask(_engine: Engine, _answered: dict[str, Any]) -> None:
        sys.argv = ["sluice", *words, "--reason", WHY]
        cli.main()

    return ask


def ask_for_skip(engine: Engine, answered: dict[str, Any]) -> None:
    lake.checkpoint(BRONZE, {"tracker-events": {"0": 5}}, {"tracker-events": {"0": 8}}, is_planned=True)
    owner = locations.checkpoints(BRONZE) / "1" / "owner.json"
    owner.write_text('{"source": {"topics": {"tracker-events": "id"}}}')
    by_form("skip", flow=BRONZE)(engine, answered)


def ask_to_give_up(engine: Engine, answered: dict[str, Any]) -> None:
    number = backfills.begin(engine, TABLE, Slice(), "a run").number
    by_form("give up", job=f"backfill {number}")(engine, answered)


def ask_for_backfill(_engine: Engine, _answered: dict[str, Any]) -> None:
    lake.rows(BRONZE, 0.1, 1)
    batch = {"flow": TABLE, "generation": 1, "batch": 0, "source_to": lake.delta_offset(1)}
    stamp = CommitProperties({"userMetadata": json.dumps({**batch, "source": {"table": BRONZE}})})
    times = pa.table({"time": [datetime(2026, 3, 1, tzinfo=UTC)]})
    write_deltalake(str(locations.table_path(TABLE)), times, commit_properties=stamp)
    lake.checkpoint(TABLE, lake.delta_offset(1))
    days = {"from": "2026-03-01", "to": "2026-03-02", "where": "driver"}
    jobs.plan_backfill(run(table=TABLE, reason=WHY, dry_run=False, **days))


def ask_for_full_refresh(engine: Engine, answered: dict[str, Any]) -> None:
    form = {"reason": WHY, "alone": False, "dry_run": False}
    jobs.full_refresh_arguments(TABLE, form, WHO, answered, "manual", engine)


def ask_for_rewind(engine: Engine, answered: dict[str, Any]) -> None:
    rewind = rewinds.plan(engine, TABLE, "2026-03-01T12:00:00+00:00", {}, [], WHO, WHY)
    jobs.require_approved_rewind(rewind.number, answered)


def ask_for_replay(_engine: Engine, _answered: dict[str, Any]) -> None:
    lake.rows(catalog.load().table(TABLE).quarantine, 0.1, 1)
    jobs.plan_replay({"table": TABLE, "rule": None, "reason": WHY}, WHO)


def ask_for_erasure(engine: Engine, answered: dict[str, Any]) -> None:
    job = requests.plan(engine, OF_SUBJECTS, Request(("user-4711",)), WHO, WHY)
    erasure.require_approved(job.number, answered)


def ask_to_destroy_the_key(engine: Engine, _answered: dict[str, Any]) -> None:
    pseudonym_key.create(engine, WHO, WHY)
    by_command("pseudonyms", "destroy-key", "--yes-destroy")(engine, _answered)


def ask_for_hold(engine: Engine, answered: dict[str, Any]) -> None:
    lake.rows(TABLE, 0.1, 1)
    by_command("hold", TABLE, "--version", "0", "--hours", "1", "--name", "report")(engine, answered)


# By place and name. What does nothing but what happens each minute anyway, or changes files of a checkout, is below.
ASKED: dict[tuple[Place, str], Ask] = {
    (Place.RUN, "backfill"): ask_for_backfill,
    (Place.RUN, "control.stream"): by_form("stop", driver="main"),
    (Place.RUN, "erase"): ask_for_erasure,
    (Place.RUN, "full_refresh"): ask_for_full_refresh,
    (Place.RUN, "maintain"): lambda _engine, _answered: maintenance.plan(TABLE, WHO, {"reason": WHY}),
    (Place.RUN, "refresh"): lambda _engine, _answered: jobs.begin_refresh(run(table=VIEW, reason=WHY)),
    (Place.RUN, "replay"): ask_for_replay,
    (Place.RUN, "rewind"): ask_for_rewind,
    **{
        (Place.ACTION, name): by_form(name, flow=TABLE)
        for name in ("restart", "stop", "start", "drain", "catch up", "acknowledge", "keep old rows")
    },
    (Place.ACTION, "move"): by_form("move", flow=TABLE, to="other"),
    (Place.ACTION, "accept data loss"): by_form("accept data loss", flow=BRONZE),
    (Place.ACTION, "reset checkpoint"): by_form("reset checkpoint", flow=TABLE),
    (Place.ACTION, "release"): by_form("release", flow=TABLE),
    (Place.ACTION, "skip"): ask_for_skip,
    (Place.ACTION, "give up"): ask_to_give_up,
    **{
        (Place.COMMAND, name): by_command(name, TABLE, "--wait-seconds", "0")
        for name in ("restart", "stop", "start", "drain")
    },
    (Place.COMMAND, "move"): by_command("move", TABLE, "--to", "other", "--wait-seconds", "0"),
    (Place.COMMAND, "ack"): by_command("ack", TABLE),
    (Place.COMMAND, "hold"): ask_for_hold,
    (Place.COMMAND, "release-hold"): by_command("release-hold", TABLE, "--name", "report"),
    (Place.COMMAND, "pseudonyms"): ask_to_destroy_the_key,
    (Place.COMMAND, "quarantine"): by_command("quarantine", TABLE, "--show-personal"),
    # What the commands call: to find a difference takes a ledger, and a preview takes Spark.
    (Place.COMMAND, "verify"): lambda engine, _: accepted_differences.accept(engine, TABLE, "key", "3 rows", WHO, WHY),
    (Place.COMMAND, "preview"): lambda _engine, _: personal_data.shown(catalog.load().table(TABLE), WHO, WHY),
    # Without a scan, which `tests/unit/cli/test_erasure.py` has.
    (Place.COMMAND, "erase"): ask_for_erasure,
}
EACH_MINUTE = {(Place.RUN, "supervise")}
EACH_MINUTE |= {(Place.COMMAND, name) for name in ("gather", "mirror", "lineage", "catalog", "metrics")}
READ = {"status", "graph", "progress", "executors", "expectations", "inspect", "explain", "jobs", "plan", "rewind"}
READ |= {"rebuild", "audit", "report", "processes", "check"}
# What programs run on this machine, and what a checkout holds. `grants`: see below.
OTHERWISE = {"up", "down", "demo", "new-table", "remove-examples", "grants"}


@pytest.fixture
def engine(home: Path, own_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    own_settings(SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}", SLUICE_ADMINS=OTHER, SUDO_USER=WHO)
    monkeypatch.setattr(sys, "argv", ["sluice"])
    control_engine = database.connect(settings().control_url)
    yield control_engine
    control_engine.dispose()


def written(engine: Engine) -> list[Row[Any]]:
    with database.reading(engine) as connection:
        return list(connection.execute(select(audits).order_by(audits.c.number)).all())


def test_each_dag_action_and_command_is_named_once():
    named = {(one.place, name) for one in access.CAPABILITIES for name in one.names}
    asked = {(place, name) for place, name in named if place in (Place.RUN, Place.ACTION)}
    commands = {(Place.COMMAND, name) for name in cli.NAMES}
    elsewhere = EACH_MINUTE | {(Place.COMMAND, name) for name in READ | OTHERWISE}
    assert ASKED.keys() | elsewhere == asked | commands
    assert not ASKED.keys() & elsewhere


@pytest.mark.parametrize(("place", "name"), ASKED, ids=lambda value: str(value).split()[-1])
def test_a_request_is_in_the_audit_with_who_why_and_who_approved_it(engine: Engine, place: Place, name: str):
    # No driver follows here, and no table is stored.
    with suppress(SluiceError, AirflowSkipException):
        ASKED[place, name](engine, answer(APPROVE))
    rows = written(engine)
    assert rows, "nothing was written"
    assert {(row.who, row.reason) for row in rows if row.who != "a run"} == {(WHO, WHY)}
    [approval] = [one.needs_approval for one in access.CAPABILITIES if one.place is place and name in one.names] or [
        name == "erase"
    ]
    assert (OTHER in {row.approver for row in rows}) is approval


APPROVED = [(one.place, name) for one in access.CAPABILITIES if one.needs_approval for name in one.names]


@pytest.mark.parametrize(("place", "name"), APPROVED, ids=lambda value: str(value).split()[-1])
def test_a_rejected_request_is_in_the_audit_with_who_rejected_it(engine: Engine, place: Place, name: str):
    with suppress(SluiceError, AirflowSkipException):
        ASKED[place, name](engine, answer(REJECT))
    last = written(engine)[-1]
    assert (last.who, last.reason, last.approver) == (WHO, WHY, None)
    assert f"rejected by {OTHER}" in last.result


def test_a_job_that_a_person_begins_by_hand_is_in_the_audit_with_the_systems_user(engine: Engine):
    window.run(catalog.load().table(TABLE), catalog.load(), reason=WHY)
    [row] = written(engine)
    assert (row.who, row.action, row.target, row.reason) == (WHO, "maintain", TABLE, WHY)


def test_the_refresh_of_a_run_that_is_tried_again_is_in_the_audit_once_and_a_scheduled_one_is_not(engine: Engine):
    for requester in (WHO, WHO, None):
        with pytest.raises(AirflowSkipException):
            jobs.begin_refresh(Run("one", {"table": VIEW, "reason": WHY}, requester, None, None, None))
    assert [row.who for row in written(engine)] == [WHO]


def test_a_window_that_a_schedule_plans_is_not_among_the_commands_of_persons(engine: Engine):
    maintenance.plan(TABLE, None, {})
    assert written(engine) == []


def test_rights_that_are_given_are_in_the_audit(on_postgresql: Engine, postgresql, own_settings, monkeypatch):
    own_settings(SLUICE_CONTROL_URL=postgresql.url, SUDO_USER=WHO)
    monkeypatch.setattr(sys, "argv", ["sluice"])
    by_command("grants", "--apply")(on_postgresql, {})
    [row] = written(on_postgresql)
    assert (row.who, row.action, row.reason) == (WHO, "grant rights", WHY)
