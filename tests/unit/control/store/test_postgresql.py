"""Failures of PostgreSQL: a server or client that hangs or stops delays nobody, and no lease is lost by accident."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from sqlalchemy import Engine, event, select, text

from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.database import BUSY_TIMEOUT_SECONDS
from include.control.store.schema import leases
from include.errors import LeaseHeld, Unreachable, UsageError
from tests.conftest import ROOT
from tests.support.postgresql import Server
from tests.support.waiting import wait_until

FLOW = "silver.readings"
# A busy machine may add 1.5 s.
PATIENCE_SECONDS = BUSY_TIMEOUT_SECONDS + 1.5
ROUNDS = 200


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


def renew(engine: Engine, held_leases: list[lease.Lease]) -> None:
    with database.transaction(engine) as connection:
        lease.renew(connection, held_leases, 30)


def test_of_two_that_ask_at_the_same_instant_one_wins_each_time_in_whatever_order_they_name_the_flows(
    on_postgresql: Engine, holder: Callable[[], Holder]
):
    barrier = threading.Barrier(2)
    epochs_by_round: list[list[int]] = [[] for _ in range(ROUNDS)]
    errors: list[Exception] = []

    def acquire(flows: list[str], new_holder: Holder) -> None:
        try:
            for epochs in epochs_by_round:
                barrier.wait(30)
                new_leases = []
                with suppress(LeaseHeld):
                    new_leases = lease.acquire(on_postgresql, flows, new_holder, 30)
                    epochs += [new_lease.epoch for new_lease in new_leases if new_lease.flow == "a"]
                barrier.wait(30)
                lease.release(on_postgresql, new_leases)
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=acquire, args=(flows, holder())) for flows in (["a", "b"], ["b", "a"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    assert epochs_by_round == [[number] for number in range(1, ROUNDS + 1)]


def test_a_server_that_hangs_is_given_up_in_time_and_used_again_when_it_works_again(postgresql, on_postgresql, holder):
    held_leases = lease.acquire(on_postgresql, [FLOW], holder(), 3600)
    with postgresql.hanging():
        for _ in range(2):
            with within(PATIENCE_SECONDS), pytest.raises(Unreachable, match="^the control database does not answer"):
                renew(on_postgresql, held_leases)
    renew(on_postgresql, held_leases)


def test_a_server_that_hangs_in_the_middle_of_a_transaction_is_given_up_in_time(postgresql, on_postgresql):
    with (
        within(PATIENCE_SECONDS),
        pytest.raises(Unreachable),
        database.transaction(on_postgresql) as connection,
        postgresql.hanging(),
    ):
        database.now(connection)


def test_a_driver_whose_server_hangs_ends_itself_before_its_lease_is_over(postgresql, on_postgresql, holder):
    halt_times: list[float] = []
    renewer = LeaseRenewer(on_postgresql, holder(), 4, lambda _reason: halt_times.append(time.time()))
    renewer.take([FLOW])
    with database.transaction(on_postgresql) as connection:
        expiry = connection.execute(select(leases.c.expires_at)).scalar_one()
    renewer.start()
    with postgresql.hanging():
        wait_until(lambda: halt_times, 10)
    renewer.stop()
    assert halt_times[0] < expiry


def test_a_lease_that_is_given_back_during_a_renewal_is_not_taken_for_a_lost_one(on_postgresql: Engine, holder):
    halt_reasons: list[str] = []
    renewer = LeaseRenewer(on_postgresql, holder(), 6, halt_reasons.append)
    renewer.take([FLOW, "silver.more"])
    return_thread = threading.Thread(target=lambda: renewer.give_back(["silver.more"]))

    @event.listens_for(on_postgresql, "before_cursor_execute", once=True)
    def start_return(*_: object) -> None:
        return_thread.start()
        # The return waits for the renewal, which has begun.
        return_thread.join(0.5)

    renewer.start()
    wait_until(lambda: not renewer.holds("silver.more") and not return_thread.is_alive(), 10)
    renewer.stop()
    assert halt_reasons == []


def test_a_server_that_is_started_anew_is_found_by_the_same_engine(postgresql: Server, on_postgresql: Engine, holder):
    held_leases = lease.acquire(on_postgresql, [FLOW], holder(), 3600)
    postgresql.stop()
    try:
        with within(PATIENCE_SECONDS), pytest.raises(Unreachable):
            renew(on_postgresql, held_leases)
    finally:
        postgresql.start()
    renew(on_postgresql, held_leases)
    postgresql.stop()
    postgresql.start()
    renew(on_postgresql, held_leases)


# Renews a lease, prints a line before it commits, and continues after a line of input.
RENEWER = """
import sys
from include.control.leases import lease
from include.control.store import database
from include.errors import Unreachable

try:
    with database.transaction(database.connect(sys.argv[1])) as connection:
        lease.renew(connection, [lease.Lease("silver.readings", 1)], 3600)
        print("inside", flush=True)
        sys.stdin.readline()
except Unreachable:
    print("unreachable", flush=True)
"""


def test_a_client_that_is_stopped_inside_a_transaction_loses_it_before_the_others_lose_patience(
    on_postgresql: Engine, holder
):
    [held_lease] = lease.acquire(on_postgresql, [FLOW], holder(), 30)
    client = subprocess.Popen(
        [sys.executable, "-c", RENEWER, on_postgresql.url.render_as_string()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout.readline() == "inside\n"
        os.kill(client.pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(client.pid).status() == psutil.STATUS_STOPPED, 10)
        with within(BUSY_TIMEOUT_SECONDS):
            renew(on_postgresql, [held_lease])
        os.kill(client.pid, signal.SIGCONT)
        assert client.communicate("go on\n", timeout=30)[0] == "unreachable\n"
    finally:
        client.kill()
        client.wait()
    with database.transaction(on_postgresql) as connection:
        remaining_seconds = connection.execute(select(leases.c.expires_at)).scalar_one() - database.now(connection)
    assert remaining_seconds < 60


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_processes_that_connect_to_an_empty_database_at_the_same_instant_all_can(kind: str, postgresql, tmp_path):
    url = f"sqlite:///{tmp_path / 'control.db'}"
    if kind == "postgresql":
        with postgresql.connection() as connection:
            connection.execute("CREATE DATABASE untouched")
        url = postgresql.url.replace("/postgres", "/untouched")
    # Forked processes import nothing, so that all of them connect at the same instant.
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(8)

    def connect() -> None:
        barrier.wait(30)
        database.connect(url)

    processes = [fork.Process(target=connect) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8


class Proxy:
    """A network proxy that can drop all data."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lets_through = threading.Event()
        self._lets_through.set()
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._sockets[0].getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def swallowing(self) -> Iterator[None]:
        self._lets_through.clear()
        yield
        self._lets_through.set()

    def close(self) -> None:
        for open_socket in self._sockets:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._sockets[0].accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for direction in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=direction, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self._lets_through.is_set():
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy(postgresql: Server) -> Iterator[Proxy]:
    new_proxy = Proxy(postgresql.port)
    yield new_proxy
    new_proxy.close()


def test_a_network_that_swallows_all_packets_is_given_up_in_time_and_used_again_when_it_is_mended(
    proxy: Proxy, on_postgresql: Engine, holder
):
    held_leases = lease.acquire(on_postgresql, [FLOW], holder(), 3600)
    proxied_engine = database.connect(on_postgresql.url.set(port=proxy.port).render_as_string())
    renew(proxied_engine, held_leases)
    with proxy.swallowing():
        for _ in range(2):
            with within(PATIENCE_SECONDS), pytest.raises(Unreachable):
                renew(proxied_engine, held_leases)
        unknown_url = on_postgresql.url.set(port=proxy.port, query={"application_name": "new"}).render_as_string()
        with within(PATIENCE_SECONDS), pytest.raises(Unreachable, match="^SLUICE_CONTROL_URL is .*: start that data"):
            database.connect(unknown_url)
    renew(proxied_engine, held_leases)
    proxied_engine.dispose()


def test_threads_never_wait_for_each_others_connections(on_postgresql: Engine):
    barrier = threading.Barrier(21)

    def hold() -> None:
        with database.transaction(on_postgresql):
            barrier.wait(10)

    threads = [threading.Thread(target=hold) for _ in range(20)]
    for thread in threads:
        thread.start()
    barrier.wait(10)
    for thread in threads:
        thread.join()
    assert not barrier.broken


def test_the_clock_runs_on_inside_a_transaction(engine: Engine):
    with database.transaction(engine) as connection:
        begin = database.now(connection)
        wait_until(lambda: database.now(connection) > begin, 1)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@h/d",
        "postgresql+psycopg2://u:secret@h/d",
        "postgresql+psycopg://u:p@secret@h/d",
        "postgresql+psycopg://u:p@sec:ret@h/d",
        "no url",
    ],
)
def test_a_database_of_another_kind_or_with_an_unescaped_password_is_refused_without_showing_its_password(url: str):
    with pytest.raises(UsageError) as refusal:
        database.connect(url)
    assert str(refusal.value) == (
        "SLUICE_CONTROL_URL is neither sqlite:///FILE nor postgresql+psycopg://USER:PASSWORD@HOST/DATABASE: set it to "
        "one of these, or unset it"
    )


def test_the_password_comes_from_a_file_and_is_not_in_the_message_that_refuses_it(postgresql, tmp_path, monkeypatch):
    url, file = postgresql.add_user("guarded", "Hush-1"), tmp_path / "pgpass"
    file.touch(mode=0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    for password in ("", "Wrong-2"):
        file.write_text(f"127.0.0.1:{postgresql.port}:postgres:guarded:{password}\n")
        with pytest.raises(Unreachable, match="^SLUICE_CONTROL_URL is .*password") as refusal:
            database.connect(url)
        assert "Wrong-2" not in str(refusal.value)
    with pytest.raises(Unreachable) as refusal:
        database.connect(url.replace("guarded@", "guarded:Wrong-3@"))
    assert "guarded:***@127.0.0.1" in str(refusal.value)
    assert "Wrong-3" not in str(refusal.value)
    with pytest.raises(Unreachable, match="^SLUICE_CONTROL_URL is postgresql") as refusal:
        database.connect(f"{url}?password=Wrong-4")
    assert "Wrong-4" not in str(refusal.value)
    file.write_text(f"127.0.0.1:{postgresql.port}:postgres:guarded:Hush-1\n")
    engine = database.connect(url)
    with database.reading(engine) as connection:
        assert connection.execute(text("SELECT current_user")).scalar_one() == "guarded"
    engine.dispose()
