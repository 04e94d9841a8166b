"""Random changes of keys, and plain Python that computes the rows of a table from all of them."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from include.ledger import row_outcomes

# Of a key: two values, a sequence, and whether the change deletes the key.
Change = tuple[int, str | None, str | None, int, bool]


def random_changes(random_: random.Random, key: int) -> list[Change]:
    return [
        (
            key,
            random_.choice([None, "north", "south"]),
            random_.choice([None, "calm", "wild"]),
            random_.randint(1, 6),
            random_.random() < 0.25,
        )
        for _ in range(random_.randint(1, 7))
    ]


def in_batches(random_: random.Random, changes: list[Change], count: int) -> list[list[Change]]:
    """The changes in a random order and with repetitions, in batches."""
    delivered = [*changes, *random_.choices(changes, k=random_.randint(0, 3))]
    random_.shuffle(delivered)
    batches: list[list[Change]] = [[] for _ in range(count)]
    for change in delivered:
        random_.choice(batches).append(change)
    return batches


def order(change: Change) -> tuple[Any, ...]:
    """Of two changes with one sequence a delete is greater, then the greater values; NULL is the least."""
    return (change[3], change[4], *[(value is not None, value or "") for value in change[1:3]])


def latest(changes: list[Change]) -> list[tuple[Any, ...]]:
    newest = max(changes, key=order)
    return [] if newest[4] else [newest[:4]]


def partial(changes: list[Change]) -> list[tuple[Any, ...]]:
    return [row[:-1] for row in partial_with_sequences(changes)]


def partial_with_sequences(changes: list[Change]) -> list[tuple[Any, ...]]:
    """Each row ends with the sequences of the changes that set its values."""
    deleted_at = max((change[3] for change in changes if change[4]), default=0)
    live = [change for change in changes if change[3] > deleted_at]
    if not live:
        return []
    newest = [
        max(((change[3], change[position]) for change in live if change[position]), default=(0, None))
        for position in (1, 2)
    ]
    values, sequences = (value for _, value in newest), tuple(sequence for sequence, _ in newest)
    return [(live[0][0], *values, max(change[3] for change in live), sequences)]


def history(changes: list[Change], tracked: slice) -> list[tuple[Any, ...]]:
    winners: dict[int, Change] = {}
    for change in sorted(changes, key=order):
        winners[change[3]] = change
    rows: list[list[Any]] = []
    is_open = False
    for sequence, change in sorted(winners.items()):
        if is_open and (change[4] or change[tracked] != rows[-1][0][tracked]):
            rows[-1][2], is_open = sequence, False
        if is_open:
            rows[-1][0] = change
        elif not change[4]:
            rows.append([change, sequence, None])
            is_open = True
    return [(*change[:4], begins, ends, ends is None) for change, begins, ends in rows]


def outcomes(
    seen: list[Change],
    batch: list[Change],
    rows_of: Callable[[list[Change]], list[tuple[Any, ...]]],
    truncates: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> dict[str, int]:
    """What a batch of changes does to its keys. truncates: their sequences, before the batch and in it."""
    counts = dict.fromkeys(row_outcomes.OUTCOMES, 0)
    by_key: dict[int, list[Change]] = {change[0]: [] for change in batch}
    for change in seen:
        by_key.setdefault(change[0], []).append(change)
    for key in {change[0] for change in batch}:
        before, after = (
            rows_of([*changes, *((key, None, None, sequence, True) for sequence in at)]) if changes else []
            for changes, at in (
                (by_key[key], truncates[0]),
                ([*by_key[key], *(change for change in batch if change[0] == key)], [*truncates[0], *truncates[1]]),
            )
        )
        had, has = (any(row[-1] is not False for row in rows) for rows in (before, after))
        same = "unchanged" if before == after else "updated"
        counts[same if had == has else "inserted" if has else "deleted"] += 1
    counts["stale"], counts["truncates"] = len(batch) - len({change[0] for change in batch}), len(truncates[1])
    return counts
