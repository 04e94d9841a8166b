"""After kills, backfills, rewinds and compactions, tables of merged changes hold what plain Python computes."""

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from include.control.commands import Action
from include.control.jobs import rewinds
from include.engine import commit
from include.engine.jobs import rewind as engine_rewind
from include.engine.rows.merge_changes import IS_CURRENT, VALID_FROM, VALID_TO
from include.errors import UsageError
from include.lake import locations
from include.ledger import verify
from include.project.sources import inline_steps
from include.spec import Delta, Flow, Table, Upsert
from tests.support.backfills import Backfills, Killed
from tests.support.commits import kill_next_batch
from tests.support.expected.changes import Change, history, latest, partial, random_changes
from tests.support.flows import FULL, only_in_full_runs, rows_of
from tests.support.rewinds import Rewinds, moment_of

# In full runs 52 kills.
CYCLES = 26 if FULL else 1
KEYS = 12
SEED = int(os.environ.get("SLUICE_SEED", "21"))
LATEST = Upsert(("id",), sequence_by="seq", deletes="op = 'd'")
WRITES = {
    "latest": LATEST,
    "partial": replace(LATEST, partial=True),
    "history": replace(LATEST, scd=2, tracked=("place",)),
}
PLAIN = ("id", "place", "mood", "seq")
COLUMNS = {"latest": PLAIN, "partial": PLAIN, "history": (*PLAIN, VALID_FROM, VALID_TO, IS_CURRENT)}
EXPECTED: dict[str, Callable[[list[Change]], list]] = {
    "latest": latest,
    "partial": partial,
    "history": lambda changes: history(changes, slice(1, 2)),
}


def changes(rows):
    rows = rows.selectExpr("split(CAST(value AS STRING), ',') AS part")
    return rows.selectExpr(
        "CAST(part[0] AS INT) AS id",
        "nullif(part[1], '') AS place",
        "nullif(part[2], '') AS mood",
        "CAST(part[3] AS INT) AS seq",
        "part[4] AS op",
    )


class History:
    """A topic of changes, bronze, and a table of each kind. story: what happened to them."""

    def __init__(self, chain, spark, run_once, ask, monkeypatch, seed: int) -> None:
        self.chain, self.spark, self.run_once, self.ask, self.monkeypatch = chain, spark, run_once, ask, monkeypatch
        self.random = random.Random(seed)
        self.merged = [
            Flow(
                name=f"silver.{chain.name}_{kind}",
                comment=kind,
                source=Delta(chain.bronze.name),
                schema="id INT, place STRING, mood STRING, seq INT",
                transform=changes,
                write=write,
            )
            for kind, write in WRITES.items()
        ]
        self.sent: dict[int, list[Change]] = {key: [] for key in range(KEYS)}
        self.moments: list[str] = []
        self.story: list[str] = []

    @property
    def all(self) -> list[Table]:
        return [self.chain.bronze, *self.merged]

    def cycle(self) -> None:
        """Each action once, and two kills, in a random order."""
        actions = [self.catch_up, self.die, self.die, self.compact, self.make_again, self.go_back, self.reset]
        self.random.shuffle(actions)
        for action in actions:
            self.story.append(action.__name__)
            self.send()
            action()
            self.moments.append(max(moment_of(table) for table in self.all))

    def send(self) -> None:
        new = [change for key in self.random.sample(range(KEYS), 3) for change in random_changes(self.random, key)]
        for change in new:
            self.sent[change[0]].append(change)
        # Some changes are delivered again.
        earlier = [change for key_changes in self.sent.values() for change in key_changes]
        delivered = [*new, *self.random.choices(earlier, k=3)]
        self.random.shuffle(delivered)
        self.chain.topic.send(
            *[
                f"{key},{place or ''},{mood or ''},{seq},{'d' if gone else 'u'}"
                for key, place, mood, seq, gone in delivered
            ]
        )

    def catch_up(self) -> None:
        self.run_once(self.chain.bronze, *self.random.sample(self.merged, 2))

    def die(self) -> None:
        table = self.random.choice(self.merged)
        self.run_once(self.chain.bronze)
        with kill_next_batch(self.monkeypatch, table.flow, self.random.random() < 0.5):
            self.run_once(table)

    def compact(self) -> None:
        table = self.random.choice(self.merged)
        for name in (table.name, table.retained):
            with commit.user_metadata(self.spark, {"window": 0, "step": "optimize"}, {}):
                self.spark.sql(f"OPTIMIZE delta.`{locations.table_path(name)}`")

    def make_again(self) -> None:
        Backfills(self.spark, tuple(self.all)).run(self.random.choice(self.merged), as_a_whole=True)

    def go_back(self) -> None:
        """Rewind to a random earlier moment. Most rewinds are killed and resumed."""
        runner = Rewinds(self.spark, *self.all)
        step = self.random.choice(("_in_window", "_begin_generations", "_require_restored"))
        with self.monkeypatch.context() as patch, suppress(Killed, UsageError):
            patch.setattr(engine_rewind, step, _die)
            runner.run(self.random.choice(self.all), self.random.choice(self.moments))
        for unfinished in rewinds.unfinished(runner.engine, [table.name for table in self.all]):
            assert runner.complete(unfinished.number).state == "done"

    def reset(self) -> None:
        self.ask(Action.RESET_CHECKPOINT, self.random.choice(self.merged))

    def assert_holds(self) -> None:
        for kind, table in zip(WRITES, self.merged, strict=True):
            stored = sorted((tuple(row[name] for name in COLUMNS[kind]) for row in rows_of(table.name)), key=repr)
            expected = [row for key_changes in self.sent.values() if key_changes for row in EXPECTED[kind](key_changes)]
            assert stored == sorted(expected, key=repr), kind
            verify.verify(table)


def _die(*_) -> None:
    raise Killed


@pytest.mark.parametrize("seed", [SEED, *([SEED + 1] if FULL else [])])
def test_merged_tables_are_as_if_nothing_had_ever_gone_wrong(chain, spark, run_once, ask, monkeypatch, seed):
    story = History(chain, spark, run_once, ask, monkeypatch, seed)
    chain.topic.create(2)
    story.send()
    run_once(*story.all)
    story.moments.append(max(moment_of(table) for table in story.all))
    for _ in range(CYCLES):
        story.cycle()
    story.send()
    run_once(*story.all)
    print("\n".join(story.story))
    story.assert_holds()


@only_in_full_runs
def test_tables_that_read_the_changes_of_a_merged_table_follow_it(append, run_once, name):
    schema = "id INT, place STRING, mood STRING, seq INT"
    latest = Flow(
        name=f"silver.{name}",
        comment="",
        source=Delta(f"bronze.{name}"),
        schema=schema,
        write=replace(LATEST, deletes="gone"),
    )
    history = replace(latest, name=f"silver.{name}_history", write=replace(latest.write, scd=2))
    copy = Flow(
        name=f"gold.{name}_copy",
        comment="",
        source=Delta(latest.name, changes=True),
        schema=f"{schema}, _commit_version BIGINT",
        transform="SELECT * FROM source WHERE _change_type <> 'update_preimage'",
        write=Upsert(("id",), sequence_by="_commit_version", deletes="_change_type = 'delete'"),
    )
    count = Flow(
        name=f"gold.{name}",
        comment="",
        source=Delta(history.name, changes=True),
        schema="place STRING, now BIGINT, ever BIGINT",
        transform="SELECT place, count_if(is_current) AS now, count(*) AS ever FROM source GROUP BY place",
        write=Upsert(("place",)),
    )
    tables, _ = inline_steps({table.name: table for table in (latest, history, copy, count)})

    def arrive(*rows: tuple) -> None:
        names = ("id", "place", "mood", "seq", "gone")
        append(f"bronze.{name}", [dict(zip(names, row, strict=True)) for row in rows], f"{schema}, gone BOOLEAN")
        run_once(tables[latest.name], tables[history.name])
        run_once(tables[copy.name], tables[count.name])

    def counts() -> dict[str, tuple[int, int]]:
        return {row["place"]: (row["now"], row["ever"]) for row in rows_of(count.name)}

    arrive((1, "north", "calm", 1, False), (2, "north", "wild", 1, False), (3, "south", "calm", 1, False))
    assert counts() == {"north": (2, 2), "south": (1, 1)}
    # A late change, a move, and a delete.
    arrive((1, "south", "calm", 5, False), (1, "west", "calm", 3, False), (3, None, None, 4, True))
    assert counts() == {"north": (1, 2), "south": (1, 2), "west": (0, 1)}
    assert {(row["id"], row["place"]) for row in rows_of(copy.name)} == {(1, "south"), (2, "north")}
    for table in tables.values():
        verify.verify(table)
