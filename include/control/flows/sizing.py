"""The executors of drivers: what the supervisor decides, with its inputs, and what each driver reports."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, select, update

from include.control.flows.scale import Decision, Load, Observed, Reason, Verdict, scale
from include.control.store import audit, database
from include.control.store.schema import driver_sizes, scale_decisions

REQUESTER = audit.SCALING
# How long a decision that is no news is kept: it is the past of later ones.
PAST_SECONDS = 1_800
# The watchdog may start a run of the supervisor at any time. Two verdicts of one moment would agree.
LEAST_GAP_SECONDS = 30


@dataclass(frozen=True)
class StoredDecision:
    """A decision as it was stored. at: seconds since 1970. replayed: what this build decides from the same inputs."""

    number: int
    at: float
    driver: str
    size: int
    size_before: int
    reason: Reason
    inputs: Observed

    @property
    def replayed(self) -> Decision:
        return scale(self.inputs)

    @property
    def is_replayed(self) -> bool:
        """Whether this build decides the same from the same inputs."""
        return (self.replayed.size, self.replayed.reason) == (self.size, self.reason)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_replayed": self.is_replayed}


@dataclass(frozen=True)
class Size:
    """The executors of a driver: that it is to have, that it had as of late, and its newest decision.

    running: None before it has reported.
    """

    driver: str
    size: int
    running: int | None
    decision: StoredDecision | None

    @property
    def words(self) -> str:
        running = "" if self.running in (None, self.size) else f", and has {self.running}"
        executors = f"driver '{self.driver}' is to have {self.size} executor{'s' if self.size != 1 else ''}{running}"
        return f"{executors}: {self.decision.replayed.words}" if self.decision else executors

    def as_json(self) -> dict[str, Any]:
        decision = self.decision.as_json() if self.decision else None
        return {"driver": self.driver, "size": self.size, "running": self.running, "decision": decision}


def declare(engine: Engine, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Give each declared driver its first size, and leave the others to Spark's own settings. Raises Unreachable.

    bounds: by driver, the fewest and the most executors. A driver begins with the fewest.
    """
    with database.transaction(engine) as connection:
        connection.execute(delete(driver_sizes).where(driver_sizes.c.driver.not_in(bounds)))
        if bounds:
            rows = [{"driver": driver, "size": least} for driver, (least, _) in bounds.items()]
            connection.execute(database.insert(connection, driver_sizes).values(rows).on_conflict_do_nothing())


def settle(
    engine: Engine, driver: str, bounds: tuple[int, int], catch_up_seconds: float, loads: tuple[Load, ...]
) -> Decision | None:
    """Decide about a declared driver, and store the decision for it to follow. None if the last one is too new.

    bounds: the fewest and the most executors. Raises Unreachable.
    """
    least, most = bounds
    with database.transaction(engine) as connection:
        current = connection.execute(
            select(driver_sizes).where(driver_sizes.c.driver == driver).with_for_update()
        ).one()
        now = database.now(connection)
        past = _past(connection, driver, now)
        if past and now - past[0].at < LEAST_GAP_SECONDS:
            return None
        verdicts = tuple(Verdict(now - row.at, row.need, row.has_backlog, row.is_known) for row in past)
        decision = scale(
            Observed(current.size, least, most, catch_up_seconds, current.cores or 1, loads, verdicts),
        )
        connection.execute(update(driver_sizes).where(driver_sizes.c.driver == driver).values(size=decision.size))
        _store(connection, driver, decision, now, before=past[0] if past else None)
    return decision


def _past(connection: Connection, driver: str, now: float) -> list[Row[Any]]:
    """The decisions of the last `PAST_SECONDS`, newest first. Deletes older ones that are no news."""
    is_past = scale_decisions.c.at.between(now - PAST_SECONDS, now)
    connection.execute(delete(scale_decisions).where(~is_past, ~scale_decisions.c.is_news))
    found = select(scale_decisions).where(scale_decisions.c.driver == driver, is_past)
    return list(connection.execute(found.order_by(scale_decisions.c.at.desc(), scale_decisions.c.number.desc())))


def _store(connection: Connection, driver: str, decision: Decision, now: float, before: Row[Any] | None) -> None:
    size_before, verdict = decision.inputs.size, decision.verdict
    is_news = decision.size != size_before or before is None or before.reason != decision.reason
    values = {
        "at": now,
        "driver": driver,
        "size": decision.size,
        "size_before": size_before,
        "reason": decision.reason,
        "need": verdict.need,
        "has_backlog": verdict.has_backlog,
        "is_known": verdict.is_known,
        "is_news": is_news,
        "inputs": decision.inputs.to_json(),
    }
    inserted = scale_decisions.insert().values(values).returning(scale_decisions.c.number)
    number = connection.execute(inserted).scalar_one()
    if is_news:
        result = f"executors {size_before} to {decision.size}: {decision.reason}, decision {number}"
        has_effect = decision.size != size_before
        audit.record(connection, REQUESTER, "scale", f"driver {driver}", decision.words, result, has_effect)


def keep(engine: Engine, numbers: Collection[int]) -> None:
    """Keep these decisions as long as those that change a size. Raises Unreachable."""
    with database.transaction(engine) as connection:
        is_named = scale_decisions.c.number.in_(numbers)
        connection.execute(update(scale_decisions).where(is_named).values(is_news=True))


def report(engine: Engine, driver: str, running: int, cores: int) -> None:
    """Report the executors of a driver. Raises Unreachable."""
    with database.transaction(engine) as connection:
        values = {"running": running, "cores": cores}
        connection.execute(update(driver_sizes).where(driver_sizes.c.driver == driver).values(values))


def sizes(engine: Engine) -> dict[str, Size]:
    """By driver. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(driver_sizes).order_by(driver_sizes.c.driver)).all()
        newest = {row.driver: next(iter(_newest(connection, row.driver, 1)), None) for row in rows}
    return {row.driver: Size(row.driver, row.size, row.running, newest[row.driver]) for row in rows}


def decisions(engine: Engine, driver: str | None, limit: int) -> list[StoredDecision]:
    """The newest decisions of a driver, or of all, newest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        return _newest(connection, driver, limit)


def _newest(connection: Connection, driver: str | None, limit: int) -> list[StoredDecision]:
    found = select(scale_decisions).order_by(scale_decisions.c.number.desc()).limit(limit)
    if driver is not None:
        found = found.where(scale_decisions.c.driver == driver)
    return [
        StoredDecision(
            row.number,
            row.at,
            row.driver,
            row.size,
            row.size_before,
            Reason(row.reason),
            Observed.from_json(row.inputs),
        )
        for row in connection.execute(found)
    ]
