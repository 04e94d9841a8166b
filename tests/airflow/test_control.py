"""A request of the on-call engineer runs once. A request that cannot be undone needs an approval."""

import getpass
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import Engine, select

from include.airflow import approvals, controls
from include.airflow.supervisor import watchdog
from include.control.flows import incidents, orders
from include.control.store import database
from include.control.store.schema import audits, releases, resets, skips
from include.lake import locations
from include.local import environment
from include.settings import from_environment, settings
from tests.conftest import free_port
from tests.support.oncall import OnCall, on_call

FLOW, BRONZE = "silver.tracker_readings", "bronze.tracker_events"
APPROVED = {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "grace"}}


def form(**values) -> dict:
    return {"flow": None, "driver": None, "reason": "a test", "hours": 24, **values}


def rows_of(engine: Engine, table) -> list:
    with database.transaction(engine) as connection:
        return list(connection.execute(select(table)).all())


@pytest.fixture
def control(dags):
    """Trigger `control.stream` as the form does. Returns the run and its messages."""

    def trigger(**values):
        run = dags["control.stream"].test(run_conf={"reason": "a test", **values})
        return run, run.get_task_instance("obey").xcom_pull(task_ids="obey")

    return trigger


def test_a_restart_is_obeyed_at_once_and_pasted_again_does_no_harm(control):
    engine = database.connect(settings().control_url)
    with database.transaction(engine) as connection:
        before = orders.order(connection, FLOW).turn
    run, messages = control(flow=FLOW, action="restart")
    assert run.state == "success"
    assert messages == [f"{FLOW}: restarts after the current batch"]
    assert run.get_task_instance("approve").state == "skipped"
    assert run.get_task_instance("now").state == "success", "the supervisor is not asked to look at once"
    _, repeated_messages = control(flow=FLOW, action="restart")
    assert repeated_messages[0].startswith(f"{FLOW}: nothing done, that was asked for ")
    with database.transaction(engine) as connection:
        assert orders.order(connection, FLOW).turn == before + 1
    audit = [(row.action, row.target, row.reason) for row in rows_of(engine, audits)]
    assert audit[-2:] == [("restart", FLOW, "a test")] * 2


def test_a_driver_stands_for_all_its_flows():
    command = controls.command(form(driver="main", action="stop"), "ada")
    assert command.who == "ada"
    assert {FLOW, BRONZE, "gold.heart_rate_by_model"} <= set(command.flows)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"action": "restart"}, "flow is None and driver is None: name exactly one of them"),
        ({"action": "restart", "flow": FLOW, "driver": "main"}, "driver is 'main': name exactly one of them"),
        ({"action": "reset checkpoint", "driver": "main"}, "is for one flow: name the flow instead"),
        ({"action": "accept data loss", "flow": FLOW}, f"flow is '{FLOW}', which reads no Kafka topic"),
        ({"action": "release", "flow": BRONZE}, f"flow is '{BRONZE}', which reads no table, so no VACUUM waits"),
        ({"action": "release", "driver": "main"}, "is for one flow: name the flow instead"),
        ({"action": "move", "flow": FLOW}, "to is None and action move: move needs a driver there"),
        ({"action": "restart", "flow": FLOW, "to": "heavy"}, "to is 'heavy' and action restart: move needs"),
        ({"action": "move", "flow": FLOW, "to": "a/b"}, "to is 'a/b'"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_one_sentence(wrong, sentence):
    with pytest.raises(AirflowFailException, match=sentence):
        controls.command(form(**wrong), "ada")


def test_who_approves_reads_what_will_happen_and_that_data_stays_missing():
    reset = controls.describe_effect(controls.command(form(flow=FLOW, action="reset checkpoint"), "ada"))
    assert f"**{FLOW}** ends" in reset
    assert "generation 1 begins where the last commit of its table ended" in reset
    assert "Asked for by ada: a test" in reset
    assert "missing" not in reset
    (locations.checkpoints(BRONZE) / "3").mkdir(parents=True)
    reset_of_empty_table = controls.describe_effect(
        controls.command(form(flow=BRONZE, action="reset checkpoint"), "ada")
    )
    (locations.checkpoints(BRONZE) / "3").rmdir()
    assert "generation 4 begins with all that its source still holds: no batch is in the table" in reset_of_empty_table
    loss = controls.describe_effect(controls.command(form(flow=BRONZE, action="accept data loss"), "ada"))
    assert "Records of topic 'tracker-events' that Kafka no longer holds stay missing" in loss
    assert "The lost ranges are recorded" in loss
    release = controls.describe_effect(controls.command(form(flow=FLOW, action="release"), "ada"))
    assert f"VACUUM of **{BRONZE}** no longer waits for **{FLOW}**" in release
    assert "its table has to be moved away, and rebuilt" in release
    assert release.endswith("Asked for by ada: a test")


@pytest.mark.usefixtures("ada_and_grace")
def test_a_skip_is_approved_for_the_batch_that_is_planned_and_for_no_other(tmp_path):
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    command = controls.command(form(flow=BRONZE, action="skip"), "ada")
    with pytest.raises(AirflowFailException, match="has no batch that is planned and not written"):
        controls.describe_effect(command)
    offsets = locations.checkpoints(BRONZE) / "1" / "offsets"
    offsets.mkdir(parents=True)
    try:
        (offsets.parent / "owner.json").write_text('{"source": {"topics": {"tracker-events": "id"}}}')
        for batch, end in enumerate((5, 8)):
            (offsets / str(batch)).write_text(f'v1\n{{}}\n{{"tracker-events":{{"0":{end}}}}}')
        assert "batch 1 of generation 1, which reads **tracker-events/0 5 to 7**" in controls.describe_effect(command)
        approved, answer = controls.approved_state(command), APPROVED
        assert controls.run_command(engine, command, approved, answer) == [
            f"{BRONZE}: leaves out batch 1 of generation 1, which reads tracker-events/0 5 to 7"
        ]
        (offsets / "2").write_text('v1\n{}\n{"tracker-events":{"0":9}}')
        with pytest.raises(AirflowSkipException, match="the flow has come to batch 2 of generation 1 and"):
            controls.run_command(engine, command, approved, answer)
    finally:
        shutil.rmtree(offsets.parent)
    [skip] = rows_of(engine, skips)
    assert (skip.flow, skip.generation, skip.batch, skip.reason) == (BRONZE, 1, 1, "a test")
    assert "ada" in skip.who and "grace" in skip.who


@pytest.mark.parametrize(
    ("answer", "approved", "sentence"),
    [
        ({"chosen_options": ["Reject"], "responded_by_user": None}, 0, "nobody approved it"),
        (None, 0, "nobody approved it"),
        (
            {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "grace"}},
            7,
            "generation 0 of its checkpoint has begun since this was asked for",
        ),
    ],
)
@pytest.mark.usefixtures("ada_and_grace")
def test_an_approval_holds_for_a_day_and_for_the_generation_it_was_asked_for(answer, approved, sentence, tmp_path):
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    command = controls.command(form(flow=FLOW, action="reset checkpoint"), "ada")
    with pytest.raises(AirflowSkipException, match=sentence):
        controls.run_command(engine, command, approved, answer)
    assert rows_of(engine, resets) == []
    assert sentence in rows_of(engine, audits)[-1].result


@pytest.mark.usefixtures("ada_and_grace")
def test_a_release_is_nothing_without_an_approval_and_names_whoever_gave_it(tmp_path: Path):
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    command = controls.command(form(flow=FLOW, action="release"), "ada")
    with pytest.raises(AirflowSkipException, match="nobody approved it"):
        controls.run_command(engine, command, controls.generation(FLOW), None)
    assert rows_of(engine, releases) == []
    approval = {"chosen_options": [approvals.APPROVE], "responded_by_user": {"id": "1", "name": "grace"}}
    controls.run_command(engine, controls.command(form(flow=FLOW, action="stop"), "ada"), None, None)
    assert controls.run_command(engine, command, controls.generation(FLOW), approval) == [
        f"{FLOW}: VACUUM no longer waits for it, and it has to be rebuilt"
    ]
    (release,) = rows_of(engine, releases)
    assert (release.flow, release.who, release.reason) == (FLOW, "ada, approved by grace", "a test")


@dataclass(frozen=True)
class RunningAirflow(OnCall):
    """The on-call engineer of an Airflow with its own control database and DAGs."""

    @property
    def engine(self) -> Engine:
        return database.connect(self.airflow.where.control_url)


@pytest.fixture(scope="module")
def running(tmp_path_factory, airflow_database: Path) -> Iterator[RunningAirflow]:
    home = tmp_path_factory.mktemp("airflow")
    config = from_environment({"SLUICE_HOME": str(home), "SLUICE_AIRFLOW_PORT": str(free_port())})
    with on_call(config, airflow_database) as engineer:
        yield RunningAirflow(engineer.airflow)


def test_a_reset_happens_only_once_a_person_approved_it_however_often_it_was_pasted(running: RunningAirflow):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda run: running.trigger_control(run, "reset checkpoint", flow=FLOW), ["first", "second"]))
    for run in ("first", "second"):
        running.wait_for_question(run)
    assert rows_of(running.engine, resets) == [], "it did not wait for the approval"
    assert running.question("first")["subject"] == f"{FLOW}: reset checkpoint?"
    running.answer("first", "Approve")
    running.wait("first", "obey", "success")
    running.answer("second", "Approve")
    running.wait("second", "obey", "success")
    (reset,) = rows_of(running.engine, resets)
    who, approver = getpass.getuser(), environment.USER
    assert (reset.flow, reset.accepts_loss, reset.reason) == (FLOW, False, "a test")
    assert (reset.who, reset.approver) == (who, approver)
    audit = [row for row in rows_of(running.engine, audits) if row.action == "reset checkpoint"]
    assert [(row.target, row.who, row.approver) for row in audit] == [(FLOW, who, approver)] * 2
    # The command is stored, but `supervise` is paused, so the task fails.
    running.wait("first", "now", "failed")


def test_what_is_rejected_does_nothing_and_stands_in_the_audit(running: RunningAirflow):
    rejected = {"accept data loss": BRONZE, "release": FLOW}
    rows_before = [rows_of(running.engine, table) for table in (resets, releases)]
    with ThreadPoolExecutor(len(rejected)) as pool:
        list(
            pool.map(lambda action: running.trigger_control(action.split()[0], action, flow=rejected[action]), rejected)
        )
    for action, flow in rejected.items():
        run = action.split()[0]
        running.wait_for_question(run)
        assert running.question(run)["subject"] == f"{flow}: {action}?"
        running.answer(run, "Reject")
        running.wait(run, "obey", "skipped")
        running.wait(run, "now", "skipped")
    assert [rows_of(running.engine, table) for table in (resets, releases)] == rows_before
    audit = {(row.target, row.action, row.who, row.result) for row in rows_of(running.engine, audits)[-2:]}
    who, result = getpass.getuser(), f"nothing done, rejected by {environment.USER}"
    assert audit == {(flow, action, who, result) for action, flow in rejected.items()}


def test_the_diagnosis_names_the_pause_where_all_else_is_well(running: RunningAirflow, monkeypatch):
    for name, value in running.airflow.variables.items():
        if name.startswith("AIRFLOW"):
            monkeypatch.setenv(name, value)
    assert watchdog.diagnose_supervisor() == ("PAUSED", "the DAG 'supervise' is paused")


def test_an_alarm_is_acknowledged_for_the_hours_that_the_form_names():
    engine = database.connect(settings().control_url)
    with database.transaction(engine) as connection:
        # Another test may have left one.
        incidents.end(connection, BRONZE)
        incidents.begin(connection, BRONZE, "STUCK", "why")
    command = controls.command(form(flow=BRONZE, action="acknowledge", hours=2), "ada")
    [message] = controls.run_command(engine, command, None, None)
    with database.transaction(engine) as connection:
        ends_at = incidents.valid_acknowledgements(connection)[BRONZE].ends_at
        assert 1.9 * 3600 < ends_at - database.now(connection) < 2.1 * 3600
        incidents.end(connection, BRONZE)
    assert message.startswith(f"{BRONZE}: its alarm STUCK is acknowledged by ada until ")


def test_a_view_has_an_alarm_and_no_stream():
    assert controls.command(form(flow="gold.heart_rate_by_day", action="acknowledge"), "ada").flows
    with pytest.raises(AirflowFailException, match="a materialized view, which has no stream for action stop"):
        controls.command(form(flow="gold.heart_rate_by_day", action="stop"), "ada")
