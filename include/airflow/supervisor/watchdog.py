"""Watches the supervisor and the drivers from outside Airflow, and cleans up; `make up` starts it.

Why the supervisor is silent, it asks Airflow's command line and health page. Only child processes load or query
Airflow, and only when there is something to report. For cron: `python -m include.airflow.supervisor.watchdog --once`
checks once, with exit code 1 if the supervisor is late.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from include import logs
from include.airflow.supervisor import housekeeping
from include.control.flows import incidents
from include.control.flows.alarms import AlarmKind
from include.control.flows.incidents import Incident
from include.control.store import database
from include.control.supervision import supervision, supervisor_presence
from include.control.supervision.supervisor_presence import LATE_SECONDS, Presence
from include.errors import Unreachable
from include.settings import settings

# The subject of the incident of a control database that does not answer.
DATABASE = "control database"
AIRFLOW_SECONDS = 60


def diagnose_supervisor() -> tuple[AlarmKind, str]:
    """State and reason. Of several findings, the first one to correct gives the state."""
    findings = [finding for finding in (_find_pause(), _find_broken_file(), _find_dead_component()) if finding]
    findings = findings or [
        (AlarmKind.LATE, f"Airflow is well, and yet no run of '{supervision.SUPERVISOR}' gets through: read its log")
    ]
    return findings[0][0], "; ".join(reason for _, reason in findings)


def _find_pause() -> tuple[AlarmKind, str] | None:
    details = _airflow("dags", "details", supervision.SUPERVISOR)
    is_paused = bool(details) and details[0].get("is_paused") in (True, "True")
    return (AlarmKind.PAUSED, f"the DAG '{supervision.SUPERVISOR}' is paused") if is_paused else None


def _find_broken_file() -> tuple[AlarmKind, str] | None:
    errors = _airflow("dags", "list-import-errors")
    broken = [
        f"{error['filepath']} ({text.splitlines()[-1]})"
        for error in errors
        if (text := (error.get("error") or "").strip())
    ]
    return (AlarmKind.UNLOADABLE, f"Airflow cannot load {', '.join(broken)}") if broken else None


def _find_dead_component() -> tuple[AlarmKind, str] | None:
    url = os.environ.get("AIRFLOW__API__BASE_URL") or f"http://127.0.0.1:{settings().airflow_port}"
    # Requests to this machine bypass the proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/api/v2/monitor/health", timeout=10) as response:
            health = json.load(response)
    except (OSError, ValueError):
        return AlarmKind.DEAD, f"Airflow's API server does not answer at {url}"
    unhealthy = [name for name in ("metadatabase", "scheduler") if health[name]["status"] != "healthy"]
    return (AlarmKind.DEAD, f"Airflow's {' and '.join(unhealthy)} shows no sign of life") if unhealthy else None


def _airflow(*arguments: str) -> list[dict[str, Any]]:
    """The JSON output of an Airflow command; empty if it fails, such as without its database."""
    command = [str(Path(sys.executable).parent / "airflow"), *arguments, "-o", "json"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=AIRFLOW_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    # The output also contains Airflow's warnings.
    documents = [line for line in completed.stdout.splitlines() if line.startswith("[{")]
    return list(json.loads(documents[-1])) if documents else []


EVERY_SECONDS = 5
# A notification that failed is repeated after this many checks.
CHECKS_BETWEEN_TRIES = 12
SUPERVISE = [str(Path(sys.executable).parent / "airflow"), "dags", "trigger", supervision.SUPERVISOR]
HOUSEKEEPING = [sys.executable, "-m", "include.airflow.supervisor.housekeeping"]
HOUSEKEEPING_SECONDS = 3_600
# `make up` starts the watchdog together with the streams, which need the CPUs first.
FIRST_HOUSEKEEPING_SECONDS = 600
TELL_TIMEOUT_SECONDS = 60
# Exit code of include.airflow.supervisor.notify if the Airflow connection is missing.
NO_CONNECTION = 2


@dataclass
class Watchdog:
    """Times are of the monotonic clock, which stops, like the supervisor, while the machine is suspended.

    late_seconds: how long the supervisor may be silent.
    again_seconds: the time between two tries to notify.
    well_at: the last heartbeat of the supervisor or `make up`, or the start of the watchdog.
    answered_at: the last answer of the control database.
    away: the incident of a control database that does not answer. news: incidents that are in no database.
    """

    late_seconds: float
    again_seconds: float
    well_at: float
    answered_at: float
    away: Incident | None = None
    news: list[Incident] = field(default_factory=list)
    is_unsent: bool = False
    told_at: float = -math.inf

    def look(self) -> bool:
        """Check once: open or end an incident if the state has changed. Returns whether all is well."""
        try:
            engine = database.connect(settings().control_url)
            is_well = self._check(engine, supervisor_presence.read(engine))
        except Unreachable as error:
            is_well = self._miss_database(str(error))
        self._tell()
        return is_well

    def _check(self, engine: Engine, observed: Presence) -> bool:
        now_seconds = time.monotonic()
        if self.away:
            self.news.append(replace(self.away, is_over=True))
            # The supervisor could not work without the database.
            self.away, self.well_at = None, now_seconds
        self.answered_at = now_seconds
        if observed.shutdown:
            # A shutdown neither opens nor ends an incident.
            self.well_at = now_seconds
            return True
        for seconds_ago in (observed.worked_seconds_ago, observed.started_seconds_ago):
            self.well_at = max(self.well_at, -math.inf if seconds_ago is None else now_seconds - max(seconds_ago, 0))
        is_well = now_seconds - self.well_at <= self.late_seconds
        open_incident = incidents.open_of(engine, supervision.SUPERVISOR)
        if is_well and open_incident:
            self._end(engine)
        elif not is_well and not open_incident:
            seconds_ago = observed.worked_seconds_ago
            self._begin(engine, "it never was" if seconds_ago is None else f"it last was {seconds_ago:.0f} s ago")
        return is_well

    def _begin(self, engine: Engine, last_seen: str) -> None:
        state, cause = diagnose_supervisor()
        reason = f"the supervisor is not at work, {last_seen}, so nobody restarts a stream that ends: {cause}"
        with database.transaction(engine) as connection:
            incidents.begin(connection, supervision.SUPERVISOR, state, reason)
        self.is_unsent = True
        logs.error(f"{state}: {reason}")

    def _end(self, engine: Engine) -> None:
        with database.transaction(engine) as connection:
            incidents.end(connection, supervision.SUPERVISOR)
        self.is_unsent = True
        logs.info("the supervisor is at work again")

    def _miss_database(self, reason: str) -> bool:
        is_well = time.monotonic() - self.answered_at <= self.late_seconds
        if not is_well and not self.away:
            self.away = Incident(0, DATABASE, AlarmKind.AWAY, f"no stream may write: {reason}")
            self.news.append(self.away)
            logs.error(reason)
        return is_well

    def _tell(self) -> None:
        """Notify; a receiver that is unreachable gets the news at a later try."""
        if not (self.news or self.is_unsent) or time.monotonic() - self.told_at < self.again_seconds:
            return
        self.told_at = time.monotonic()
        # One message per incident, so that an accepted one is not repeated because of a refused one.
        self.news = [incident for incident in self.news if not _notify("--stdin", news=[incident])]
        if self.is_unsent and not self.away and _notify():
            self.is_unsent = False
        if not (self.news or self.is_unsent):
            self.told_at = -math.inf


def _notify(*options: str, news: list[Incident] | None = None) -> bool:
    """Returns whether nothing is left to send."""
    command = [sys.executable, "-m", "include.airflow.supervisor.notify", *options]
    document = json.dumps([asdict(incident) for incident in news or []])
    try:
        completed = subprocess.run(command, input=document, text=True, timeout=TELL_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        logs.error(f"messages could not be sent: {error}")
        return False
    return completed.returncode in (0, NO_CONNECTION)


@dataclass
class DriverWatch:
    """Starts a run of the supervisor as soon as a driver has ended. Its next scheduled run may be a minute away.

    It sees drivers on this machine only. alive: by driver, the handle of the process that was alive at the last check.
    """

    alive: dict[str, str] = field(default_factory=dict)
    child: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Check once, without waiting for the child that starts the run."""
        try:
            engine = database.connect(settings().control_url)
            handles, presence = supervision.handles(engine), supervisor_presence.read(engine)
        except Unreachable:
            # `Watchdog` reports it.
            return
        ended = [driver for driver, handle in self.alive.items() if supervision.has_ended_here(handle)]
        self.alive = {driver: handle for driver, handle in handles.items() if not supervision.has_ended_here(handle)}
        if ended and not presence.shutdown:
            logs.info(f"{', '.join(ended)} ended, so the supervisor works now")
            self.child = subprocess.Popen(SUPERVISE, stdout=subprocess.DEVNULL)


@dataclass
class Housekeeper:
    """Rotates long logs at each check, and starts the housekeeping as a child process, the first time at `next_at`."""

    next_at: float
    child: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Check once, without waiting for the child."""
        for file in housekeeping.rotate():
            logs.info(f"{file} was long, and is set aside")
        is_done = self.child is None or self.child.poll() is not None
        if is_done and time.monotonic() >= self.next_at:
            self.next_at = time.monotonic() + HOUSEKEEPING_SECONDS
            self.child = subprocess.Popen(HOUSEKEEPING)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m include.airflow.supervisor.watchdog")
    parser.add_argument("--once", action="store_true", help="look once; exit code 1 when the supervisor is late")
    parser.add_argument("--every", type=float, default=EVERY_SECONDS, metavar="SECONDS")
    parser.add_argument("--late", type=float, default=LATE_SECONDS, metavar="SECONDS")
    parser.add_argument("--alive", type=Path, metavar="FILE", help="touched after each look, for a probe")
    options = parser.parse_args()
    logs.start()
    if options.once:
        return 0 if Watchdog(options.late, 0, -math.inf, -math.inf).look() else 1
    # The silence before its start does not count: the supervisor may just have been started.
    watchdog = Watchdog(options.late, CHECKS_BETWEEN_TRIES * options.every, time.monotonic(), time.monotonic())
    driver_watch = DriverWatch()
    housekeeper = Housekeeper(time.monotonic() + FIRST_HOUSEKEEPING_SECONDS)
    while True:
        for check in (driver_watch.look, watchdog.look, housekeeper.look):
            try:
                check()
            except Exception as error:
                # The watchdog must survive every error.
                logs.error(f"a check failed: {error}", traceback=True)
        if options.alive:
            options.alive.touch()
        time.sleep(options.every)


if __name__ == "__main__":
    sys.exit(main())
