"""Notices, outside Airflow, that the supervisor is not at work, and keeps house; `make up` starts it.

Airflow is only asked, and only loaded, by child processes, and only when there is something to say. For cron:
`python -m include.orchestration.watchdog --once` looks once, and its exit code is 1 when the supervisor is late.
"""

import argparse
import json
import math
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field, replace

from sqlalchemy import Engine

from include.control import incidents
from include.control.incidents import Incident
from include.control.store import database
from include.control.supervision import attendance, supervision
from include.control.supervision.attendance import LATE_SECONDS, Attendance
from include.errors import Unreachable
from include.orchestration import diagnose, leftovers
from include.settings import settings

EVERY_SECONDS = 30
HOUSEKEEPING = [sys.executable, "-m", "include.orchestration.housekeeping"]
HOUSEKEEPING_SECONDS = 3_600
# `make up` starts it together with the streams, which need the processors first.
FIRST_HOUSEKEEPING_SECONDS = 600
TELL_TIMEOUT_SECONDS = 60
# Exit code of include.orchestration.notify when only somebody who adds a connection can help.
NO_CONNECTION = 2


@dataclass
class Watchdog:
    """Times are of a clock that stands still while the machine sleeps, as the supervisor does.

    late_seconds: how long it may be away.
    well_at: when the supervisor was last at work, or `make up`, or watching began.
    answered_at: when the control database did.
    again_seconds: from one try to reach people to the next.
    away: the incident of a control database that does not answer. news: messages that stand in no database.
    """

    late_seconds: float
    again_seconds: float
    well_at: float
    answered_at: float
    away: Incident | None = None
    news: list[Incident] = field(default_factory=list)
    is_untold: bool = False
    told_at: float = -math.inf

    def look(self) -> bool:
        """Whether all is well; an incident begins or ends where that has changed."""
        try:
            engine = database.connect(settings().control_url)
            is_well = self._judge(engine, attendance.look(engine))
        except Unreachable as error:
            is_well = self._miss_database(str(error))
        self._tell()
        return is_well

    def _judge(self, engine: Engine, seen: Attendance) -> bool:
        now = time.monotonic()
        if self.away:
            self.news.append(replace(self.away, is_over=True))
            # Without the database the supervisor could not work either.
            self.away, self.well_at = None, now
        self.answered_at = now
        if seen.shutdown:
            # Stopped on purpose: nothing is missed, and nothing is over.
            self.well_at = now
            return True
        for ago in (seen.worked_seconds_ago, seen.started_seconds_ago):
            self.well_at = max(self.well_at, -math.inf if ago is None else now - max(ago, 0))
        is_well = now - self.well_at <= self.late_seconds
        held = incidents.open_of(engine, supervision.NAME)
        if is_well and held:
            self._end(engine, *held)
        elif not is_well and not held:
            ago = seen.worked_seconds_ago
            self._begin(engine, "it never was" if ago is None else f"it last was {ago:.0f} s ago")
        return is_well

    def _begin(self, engine: Engine, last: str) -> None:
        state, cause = diagnose.supervisor()
        reason = f"the supervisor is not at work, {last}, so nobody restarts a stream that ends: {cause}"
        with database.transaction(engine) as connection:
            incidents.begin(connection, supervision.NAME, state, reason)
        self.is_untold = True
        _say(f"{state}: {reason}")

    def _end(self, engine: Engine, incident: Incident, was_told: bool) -> None:
        with database.transaction(engine) as connection:
            incidents.end(connection, supervision.NAME)
        if was_told:
            self.news.append(replace(incident, is_over=True))
        self.is_untold = True
        _say("the supervisor is at work again")

    def _miss_database(self, reason: str) -> bool:
        is_well = time.monotonic() - self.answered_at <= self.late_seconds
        if not is_well and not self.away:
            self.away = Incident(0, diagnose.DATABASE, "AWAY", f"no stream may write: {reason}")
            self.news.append(self.away)
            _say(reason)
        return is_well

    def _tell(self) -> None:
        """A receiver that is away gets it later."""
        if not (self.news or self.is_untold) or time.monotonic() - self.told_at < self.again_seconds:
            return
        self.told_at = time.monotonic()
        # Each for itself: what the receiver takes is not sent again with what it refuses.
        self.news = [one for one in self.news if not _notify("--stdin", news=[one])]
        if self.is_untold and not self.away and _notify():
            self.is_untold = False
        if not (self.news or self.is_untold):
            self.told_at = -math.inf


def _notify(*options: str, news: list[Incident] | None = None) -> bool:
    """Whether there is nothing more to do."""
    command = [sys.executable, "-m", "include.orchestration.notify", *options]
    document = json.dumps([asdict(incident) for incident in news or []])
    try:
        done = subprocess.run(command, input=document, text=True, timeout=TELL_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        _say(f"nobody could be told: {error}")
        return False
    return done.returncode in (0, NO_CONNECTION)


@dataclass
class Housekeeper:
    """Cuts logs that are long at once, and has the rest cleaned up by a child process, the first time at `next_at`."""

    next_at: float
    child: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Never waits for the child."""
        for log in leftovers.rotate():
            _say(f"{log} was long, and is put aside")
        is_done = self.child is None or self.child.poll() is not None
        if is_done and time.monotonic() >= self.next_at:
            self.next_at = time.monotonic() + HOUSEKEEPING_SECONDS
            self.child = subprocess.Popen(HOUSEKEEPING)


def _say(what: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m include.orchestration.watchdog")
    parser.add_argument("--once", action="store_true", help="look once; exit code 1 when the supervisor is late")
    parser.add_argument("--every", type=float, default=EVERY_SECONDS, metavar="SECONDS")
    parser.add_argument("--late", type=float, default=LATE_SECONDS, metavar="SECONDS")
    options = parser.parse_args()
    if options.once:
        return 0 if Watchdog(options.late, 0, -math.inf, -math.inf).look() else 1
    # What happened before it watched is not held against the supervisor, which may just have been started.
    watchdog = Watchdog(options.late, 2 * options.every, time.monotonic(), time.monotonic())
    housekeeper = Housekeeper(time.monotonic() + FIRST_HOUSEKEEPING_SECONDS)
    while True:
        for look in (watchdog.look, housekeeper.look):
            try:
                look()
            except Exception:
                # It has to outlive whatever it watches, whatever that does.
                traceback.print_exc()
        time.sleep(options.every)


if __name__ == "__main__":
    sys.exit(main())
