"""After random faults, a rewind and new batches, the tables hold exactly the rows of a run without faults."""

import os
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from include.control.commands import Action
from include.control.jobs import rewinds
from include.engine import commit
from include.engine.jobs import rewind as engine_rewind
from include.errors import UsageError
from include.lake import locations
from include.ledger import verify
from include.spec import Delta, Flow, Table
from tests.support.backfills import Backfills, Killed
from tests.support.commits import kill_next_batch
from tests.support.flows import FULL, double_numbers, rows_of
from tests.support.rewinds import Rewinds, moment_of

ROUNDS = 20 if FULL else 2
SEED = int(os.environ.get("SLUICE_SEED", "11"))
STEPS = ("_replan", "_in_window", "_begin_generations", "_require_restored", "_refresh", "_difference")


class History:
    """A topic and four tables: bronze, silver with a quarantine, gold with upserted sums, and a copy of silver."""

    def __init__(self, chain, spark, run_once, ask, monkeypatch, seed: int) -> None:
        self.chain, self.spark, self.run_once, self.ask, self.monkeypatch = chain, spark, run_once, ask, monkeypatch
        self.rng = random.Random(seed)
        bronze, silver, gold = chain.in_slices
        copy = Flow(
            name=f"gold.{chain.name}_copy",
            comment="",
            source=Delta(silver.name),
            schema="number INT, partition INT, offset BIGINT",
        )
        self.original_tables = {table.name: table for table in (bronze, silver, gold, copy)}
        self.tables = dict(self.original_tables)
        self.silver = silver.name
        self.moments: list[str] = []
        self.story: list[str] = []
        self.kills = 0
        self.has_sent_numbers = self.has_batch_to_kill = False

    @property
    def all(self) -> tuple[Table, ...]:
        return tuple(self.tables.values())

    def begin(self) -> None:
        self.chain.topic.create(2)
        self.send()
        self.run_once(*self.all)
        self.remember()

    def round(self) -> None:
        action = self.rng.choice((self.catch_up, self.die, self.compact, self.make_again, self.reset, self.go_back))
        self.story.append(action.__name__)
        self.send()
        action()
        self.remember()

    def send(self) -> None:
        # The random numbers repeat old minutes, as late rows do.
        values = [self.rng.choice((self.rng.randrange(400), "x")) for _ in range(self.rng.randrange(2, 9))]
        self.has_sent_numbers = any(value != "x" for value in values)
        self.chain.topic.send(*values)

    def remember(self) -> None:
        self.moments.append(max(moment_of(table) for table in self.all))

    def catch_up(self) -> None:
        self.run_once(*self.all[: self.rng.randrange(1, 5)])

    def die(self) -> None:
        index = self.rng.randrange(4)
        self.run_once(*self.all[:index])
        is_written = self.rng.random() < 0.5
        # Bronze and silver read every new message. Gold and the copy have no batch to read if no number was sent.
        self.has_batch_to_kill |= index < 2 or self.has_sent_numbers
        try:
            with kill_next_batch(self.monkeypatch, self.all[index].flow, is_written):
                self.run_once(self.all[index])
        except pytest.fail.Exception:
            self.story.append("nothing was killed")
        else:
            self.kills += 1

    def compact(self) -> None:
        path = locations.table_path(self.rng.choice(self.all).name)
        with commit.user_metadata(self.spark, {"window": 0, "step": "optimize"}, {}):
            self.spark.sql(f"OPTIMIZE delta.`{path}`")

    def make_again(self) -> None:
        begin = self.rng.randrange(0, 6) * 60
        Backfills(self.spark, self.all).run(self.tables[self.silver], begin, begin + 120)

    def reset(self) -> None:
        self.ask(Action.RESET_CHECKPOINT, self.rng.choice(self.all))

    def go_back(self) -> None:
        """Rewind to a random earlier moment. Most rewinds are killed and resumed."""
        root, moment = self.rng.choice(self.all), self.rng.choice(self.moments)
        rows_before = [sorted(map(repr, rows_of(table.name))) for table in self.all]
        try:
            self.rewind(root.name, moment)
        except UsageError:
            self.story.append("refused")
            assert rows_before == [sorted(map(repr, rows_of(table.name))) for table in self.all]

    def rewind(self, root: str, moment: str) -> None:
        runner = Rewinds(self.spark, *self.all)
        step = self.rng.choice(STEPS)
        self.story.append(f"{root} to {moment}, dies at {step}")
        with self.monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(engine_rewind, step, _die)
            runner.run(self.tables[root], moment)
        for unfinished in rewinds.unfinished(runner.engine, list(self.tables)):
            assert runner.complete(unfinished.number).state == "done"


def _die(*_) -> None:
    raise Killed


@pytest.mark.parametrize("seed", [SEED, *([SEED + 1, SEED + 2, SEED + 3] if FULL else [])])
def test_put_back_and_made_again_the_tables_are_as_if_nothing_had_ever_gone_wrong(
    chain, spark, run_once, ask, monkeypatch, seed
):
    history = History(chain, spark, run_once, ask, monkeypatch, seed)
    history.begin()
    for _ in range(ROUNDS // 2):
        history.round()
    valid_moment = history.moments[-1]
    history.tables[history.silver] = replace(history.original_tables[history.silver], transform=double_numbers)
    for _ in range(ROUNDS - ROUNDS // 2):
        history.round()
    history.send()
    run_once(*history.all)
    print("\n".join(history.story))
    assert history.kills or not history.has_batch_to_kill, "no kill fired"
    assert any(row["number"] != row["time"].timestamp() for row in rows_of(history.silver))
    history.tables = dict(history.original_tables)
    try:
        history.rewind(history.silver, valid_moment)
    except UsageError as error:
        # A later rewind changed the source of silver, so the source must be rewound, too.
        print(error)
        history.rewind(chain.bronze.name, valid_moment)
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
