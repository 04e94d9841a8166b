"""Asks a store whether of several writers that create one object at the same time exactly one succeeds."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from include.lake.object_path import ObjectPath

# A store that checks first and writes later lets two of eight through in nearly each round, and is found in the first.
WRITERS, ROUNDS = 8, 5


def has_one_winner(directory: ObjectPath) -> bool:
    """Whether each of several races for an object in the directory has exactly one winner. Raises Unreachable.

    One creation after the other proves little: some stores refuse the second one, and let both through if they overlap.
    """
    with ThreadPoolExecutor(WRITERS) as pool:
        return all(_winners(directory / f"_probe-{uuid.uuid4().hex}", pool) == 1 for _ in range(ROUNDS))


def _winners(path: ObjectPath, pool: ThreadPoolExecutor) -> int:
    start = threading.Barrier(WRITERS)

    def create(writer: int) -> bool:
        start.wait()
        return path.create(f"writer {writer}".encode())

    try:
        return sum(pool.map(create, range(WRITERS)))
    finally:
        path.unlink()
