"""Every kind of alarm: its runbook, the command that comes with it, and whether it is sent in place of an open one."""

import json
import shlex
from dataclasses import dataclass
from enum import StrEnum

from include.control.store.job_id import JobKind
from include.spec import table_of

RESTART, START = "restart", "start"
# The action on a flow for an error of this class, where a correction and a restart do not help.
ACTIONS = {
    "CHECKPOINT_LOST": "reset checkpoint",
    "CHECKPOINT_DAMAGED": "reset checkpoint",
    "TABLE_RESTORED": "reset checkpoint",
    "RELEASED": "reset checkpoint",
    "TOPIC_REPLACED": "accept data loss",
    "KAFKA_DATA_LOSS": "accept data loss",
}


# The errors of flows that a dead job keeps stopped: that job is to be ended.
OF_JOBS = frozenset(f"{kind.upper()}_UNFINISHED" for kind in JobKind)


def action_for(error: str) -> str:
    """The action that corrects an error of this class or of one of its subclasses; empty: none does."""
    if error in OF_JOBS:
        return ""
    return ACTIONS.get(error.split(".")[0], RESTART)


class AlarmKind(StrEnum):
    """Worst first. The value is stored, and stands in messages. TRIAL: a person tries whether messages arrive."""

    AWAY = "AWAY"
    DEAD = "DEAD"
    PAUSED = "PAUSED"
    UNLOADABLE = "UNLOADABLE"
    LATE = "LATE"
    JOB_FAILED = "JOB FAILED"
    BROKEN = "BROKEN"
    STUCK = "STUCK"
    BACKING_OFF = "BACKING OFF"
    REJECTING = "REJECTING"
    LAGGING = "LAGGING"
    NOT_FRESH = "NOT FRESH"
    WINDOW_FAILED = "WINDOW FAILED"
    INVALID_DEFINITION = "INVALID DEFINITION"
    HELD_BACK = "HELD BACK"
    COPIES_LEFT = "COPIES LEFT"
    NOT_CLEANED_UP = "NOT CLEANED UP"
    TRIAL = "TRIAL"

    def target(self, subject: str) -> str:
        """What an incident of this kind is about, so that one subject can have alarms of several parts at once."""
        part = ALARMS[self].part
        return f"{part} {subject}" if part else subject


@dataclass(frozen=True)
class Alarm:
    """runbook: a page in docs/runbooks. next_step: for a person, in words. command: with the fields `subject`,
    `table`, and `form` of a DAG for the table; empty: the action that corrects the flow.

    part: of the subject, where it has alarms of its own; empty for a flow.
    is_sent_at_once: whether it is sent although its subject has an open alarm of another kind.
    """

    runbook: str
    next_step: str
    command: str = ""
    part: str = ""
    is_sent_at_once: bool = False


RESTART_PLATFORM = "start what is missing, then see whether the supervisor works again"
ALARMS = {
    AlarmKind.BROKEN: Alarm("broken", "correct what the runbook names, then run the command", is_sent_at_once=True),
    AlarmKind.BACKING_OFF: Alarm("backing-off", "none, it is started again; if it fails on and on, read its log"),
    AlarmKind.STUCK: Alarm("stuck", "read its driver's log, then run the command"),
    AlarmKind.LAGGING: Alarm("lagging", "see what takes its time", "sluice status", is_sent_at_once=True),
    AlarmKind.NOT_FRESH: Alarm("not-fresh", "see which flow is late", "sluice status", is_sent_at_once=True),
    AlarmKind.REJECTING: Alarm(
        "rejecting", "see which rule the rows break", "sluice expectations {table}", is_sent_at_once=True
    ),
    AlarmKind.INVALID_DEFINITION: Alarm(
        "invalid-definition", "correct the table's file", "sluice check", part="definition"
    ),
    AlarmKind.WINDOW_FAILED: Alarm(
        "window-failed",
        "correct its cause, then run it again",
        "airflow dags trigger maintain -c {form}",
        part="window",
    ),
    AlarmKind.HELD_BACK: Alarm("held-back", "start, or release, the reader", "sluice plan {subject}", part="vacuum"),
    AlarmKind.COPIES_LEFT: Alarm(
        "copies-left", "tell the reader, then release its hold, or hold again", "sluice plan {subject}", part="copies"
    ),
    AlarmKind.JOB_FAILED: Alarm("unfinished-job", "end the job, or give it up", "sluice jobs", part="job"),
    AlarmKind.NOT_CLEANED_UP: Alarm(
        "not-cleaned-up", "correct its cause, then clean up", "python -m include.airflow.supervisor.housekeeping"
    ),
    AlarmKind.PAUSED: Alarm("supervisor", "let it run", "airflow dags unpause {subject}"),
    AlarmKind.UNLOADABLE: Alarm("supervisor", "correct the file", "airflow dags list-import-errors"),
    AlarmKind.DEAD: Alarm("supervisor", RESTART_PLATFORM, "sluice up"),
    AlarmKind.LATE: Alarm("supervisor", "see why its runs do not end", "airflow dags list-runs {subject}"),
    AlarmKind.AWAY: Alarm("supervisor", RESTART_PLATFORM, "sluice up"),
    AlarmKind.TRIAL: Alarm("supervisor", "none", "sluice status"),
}


SENT_AT_ONCE: frozenset[str] = frozenset(kind for kind, alarm in ALARMS.items() if alarm.is_sent_at_once)


def runbook(kind: str) -> str:
    """The path of the page in the repository."""
    return f"docs/runbooks/{ALARMS[AlarmKind(kind)].runbook}.md"


def command(kind: str, subject: str, number: int, error: str = "", driver: str = "") -> str:
    """The command that helps, or that shows more. number: of the incident. error: its class. driver: that is to blame.

    An action that needs an approval is one of Airflow. Others work without it.
    """
    if template := ALARMS[AlarmKind(kind)].command:
        form = shlex.quote(json.dumps({"table": subject}))
        return template.format(subject=subject, table=table_of(subject), form=form)
    action, reason = action_for(error), f"incident {number}"
    if not action:
        return "sluice jobs"
    if action != RESTART:
        form = json.dumps({"flow": subject, "action": action, "reason": reason})
        return f"airflow dags trigger control.stream -c {shlex.quote(form)}"
    target = ["--driver", driver] if driver else [subject]
    return shlex.join(["sluice", "restart", *target, "--reason", reason])


def severity(kind: str) -> int:
    """Less is worse."""
    return list(AlarmKind).index(AlarmKind(kind))
