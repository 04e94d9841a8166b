"""Whatever happened before: put back to a moment and made again, the tables are as if nothing had ever gone wrong."""

import os
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from include.control.commands import Action
from include.control.jobs import rewinds
from include.engine.jobs import rewind as engine_rewind
from include.engine.tables import commit
from include.errors import UsageError
from include.ledger import verify
from include.settings import settings
from include.spec import Delta, Table
from tests.faults.test_reckoning import killed
from tests.faults.test_rewinds import wrong
from tests.support.backfills import Backfills, Killed
from tests.support.flows import FULL, rows_of
from tests.support.rewinds import Rewinds, moment_of

ROUNDS = 20 if FULL else 4
SEED = int(os.environ.get("SLUICE_SEED", "11"))
STEPS = ("_replan", "_in_window", "_begin_generations", "_require_restored", "_refresh", "_difference")


class History:
    """A topic, bronze, silver with a quarantine, its sums by upsert, and a copy of its appends."""

    def __init__(self, chain, spark, run_once, ask, monkeypatch, seed: int) -> None:
        self.chain, self.spark, self.run_once, self.ask, self.monkeypatch = chain, spark, run_once, ask, monkeypatch
        self.dice = random.Random(seed)
        bronze, silver, gold = chain.in_slices
        copy = Table(
            name=f"gold.{chain.name}_copy",
            comment="",
            source=Delta(silver.name),
            schema="number INT, partition INT, offset BIGINT",
        )
        self.right = {table.name: table for table in (bronze, silver, gold, copy)}
        self.tables = dict(self.right)
        self.silver = silver.name
        self.moments: list[str] = []
        self.story: list[str] = []

    @property
    def all(self) -> tuple[Table, ...]:
        return tuple(self.tables.values())

    def begin(self) -> None:
        self.chain.topic.create(2)
        self.send()
        self.run_once(*self.all)
        self.remember()

    def round(self) -> None:
        what = self.dice.choice((self.catch_up, self.die, self.compact, self.make_again, self.reset, self.go_back))
        self.story.append(what.__name__)
        self.send()
        what()
        self.remember()

    def send(self) -> None:
        # Old minutes come again and again, as late rows do.
        values = [self.dice.choice((self.dice.randrange(400), "x")) for _ in range(self.dice.randrange(2, 9))]
        self.chain.topic.send(*values)

    def remember(self) -> None:
        self.moments.append(max(moment_of(table) for table in self.all))

    def catch_up(self) -> None:
        self.run_once(*self.all[: self.dice.randrange(1, 5)])

    def die(self) -> None:
        dead = self.dice.randrange(4)
        self.run_once(*self.all[:dead])
        is_written = self.dice.random() < 0.5
        # Failed: it had nothing to read.
        with suppress(pytest.fail.Exception), killed(self.monkeypatch, self.all[dead].flow, is_written):
            self.run_once(self.all[dead])

    def compact(self) -> None:
        path = settings().table_path(self.dice.choice(self.all).name)
        with commit.user_metadata(self.spark, {"window": 0, "step": "optimize"}, {}):
            self.spark.sql(f"OPTIMIZE delta.`{path}`")

    def make_again(self) -> None:
        begin = self.dice.randrange(0, 6) * 60
        Backfills(self.spark, self.all).run(self.tables[self.silver], begin, begin + 120)

    def reset(self) -> None:
        self.ask(Action.RESET_CHECKPOINT, self.dice.choice(self.all))

    def go_back(self) -> None:
        """To any moment, and mostly not in one go."""
        root, moment = self.dice.choice(self.all), self.dice.choice(self.moments)
        before = [sorted(map(repr, rows_of(table.name))) for table in self.all]
        try:
            self.rewind(root.name, moment)
        except UsageError:
            self.story.append("refused")
            assert before == [sorted(map(repr, rows_of(table.name))) for table in self.all]

    def rewind(self, root: str, moment: str) -> None:
        house = Rewinds(self.spark, *self.all)
        step = self.dice.choice(STEPS)
        self.story.append(f"{root} to {moment}, dies at {step}")
        with self.monkeypatch.context() as patched, suppress(Killed):
            patched.setattr(engine_rewind, step, _die)
            house.run(self.tables[root], moment)
        for left in rewinds.unfinished(house.engine, list(self.tables)):
            assert house.end(left.number).phase == "done"


def _die(*_) -> None:
    raise Killed


@pytest.mark.parametrize("seed", [SEED, *([SEED + 1, SEED + 2, SEED + 3] if ROUNDS > 4 else [])])
def test_put_back_and_made_again_the_tables_are_as_if_nothing_had_ever_gone_wrong(
    chain, spark, run_once, ask, monkeypatch, seed
):
    history = History(chain, spark, run_once, ask, monkeypatch, seed)
    history.begin()
    for _ in range(ROUNDS // 2):
        history.round()
    good = history.moments[-1]
    history.tables[history.silver] = replace(history.right[history.silver], transform=wrong)
    for _ in range(ROUNDS - ROUNDS // 2):
        history.round()
    history.send()
    run_once(*history.all)
    print("\n".join(history.story))
    assert any(row["number"] != row["time"].timestamp() for row in rows_of(history.silver))
    history.tables = dict(history.right)
    try:
        history.rewind(history.silver, good)
    except UsageError as refused:
        # What it reads was itself put back since, so that has to go back, too.
        print(refused)
        history.rewind(chain.bronze.name, good)
    history.send()
    run_once(*history.all)
    chain.assert_holds(chain.topic.messages())
    copied, silver = (
        sorted((row["partition"], row["offset"], row["number"]) for row in rows_of(name))
        for name in (history.all[3].name, history.silver)
    )
    assert copied == silver
    for table in history.all:
        verify.verify(table)
