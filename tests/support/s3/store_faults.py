"""Faults of a store behind a `StoreProxy`. Each lasts for a block."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.s3.proxy import EXPIRED_TOKEN, SLOW_DOWN, Refusal, Request, StoreProxy
from tests.support.waiting import sleep_through

COMMIT = re.compile(r"/_delta_log/\d{20}\.json$")
DATA_FILE = re.compile(r"/[^/]+\.parquet$")
# The two files of a checkpoint that plan and commit a batch.
PLAN, END = re.compile(r"/offsets/\d+$"), re.compile(r"/commits/\d+$")


def key_of(request: Request) -> str:
    return urlsplit(request.path).path


@contextmanager
def refusing(proxy: StoreProxy, refuses: Callable[[Request], Refusal | None]) -> Iterator[None]:
    forwards, proxy.refuses = proxy.refuses, refuses
    try:
        yield
    finally:
        proxy.refuses = forwards


@contextmanager
def slow(proxy: StoreProxy, seconds: float) -> Iterator[None]:
    """Each request takes so much longer."""
    before, proxy.before = proxy.before, lambda request: sleep_through(seconds)
    try:
        yield
    finally:
        proxy.before = before


@contextmanager
def overloaded(proxy: StoreProxy) -> Iterator[None]:
    """Every tenth request is answered with status 503."""
    numbers = itertools.count(1)
    with refusing(proxy, lambda request: SLOW_DOWN if next(numbers) % 10 == 0 else None):
        yield


@contextmanager
def credentials_expired(proxy: StoreProxy, first: re.Pattern[str]) -> Iterator[None]:
    """Credentials expire while an object is written whose key matches `first`, and are renewed after the block."""
    has_expired: list[Request] = []

    def refuse(request: Request) -> Refusal | None:
        if request.method == "PUT" and first.search(key_of(request)):
            has_expired.append(request)
        return EXPIRED_TOKEN if has_expired else None

    with refusing(proxy, refuse):
        yield
    assert has_expired


@contextmanager
def answers_lost(
    proxy: StoreProxy, *keys: re.Pattern[str], tries: int = 1, reads: bool = False
) -> Iterator[dict[str, int]]:
    """The store executes each PUT of an object whose key matches, and the client gets no answer to the first `tries`.

    reads: nor does it get an answer if it then reads the object. Yields the number of PUTs by key.
    """
    puts: dict[str, int] = {}

    def lose(request: Request) -> bool:
        key = key_of(request)
        if request.method == "GET" and reads:
            return key in puts
        if request.method != "PUT" or not any(pattern.search(key) for pattern in keys):
            return False
        puts[key] = puts.get(key, 0) + 1
        return puts[key] <= tries

    loses, proxy.loses = proxy.loses, lose
    try:
        yield puts
    finally:
        proxy.loses = loses
