"""A platform that `docker compose up` has started from a copy of this checkout, with what tests ask of it."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from include.containers import compose_env
from tests.support.waiting import wait_until

# A container that no test ends.
SHELL = "supervisor-watchdog"
BRONZE, SILVER = "bronze.numbers", "silver.squares"
TABLES = {
    "bronze/numbers.py": """from include.spec import Kafka, Table

TABLE = Table(name="bronze.numbers", comment="Numbers of a test", source=Kafka("numbers"), interval_seconds=1)
""",
    "silver/squares.py": """from include.spec import Delta, Table

TABLE = Table(
    name="silver.squares",
    comment="Numbers of a test, and their squares",
    source=Delta("bronze.numbers"),
    schema="number BIGINT, square BIGINT",
    transform='''
        SELECT number, number * number AS square
        FROM (SELECT CAST(CAST(value AS STRING) AS BIGINT) AS number FROM source)
    ''',
    interval_seconds=1,
)
""",
}
SEND = """
import os, sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": os.environ["SLUICE_KAFKA"], "enable.idempotence": True})
for number in range(*map(int, sys.argv[1:])):
    producer.produce("numbers", str(number))
assert producer.flush(240) == 0
"""
STORED = """
import json, os, sys
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from include.settings import settings
try:
    rows = DeltaTable(f"{settings().home}/lake/{sys.argv[1]}").to_pyarrow_table().to_pylist()
except TableNotFoundError:
    rows = []
values = [[int(row["value"])] if "value" in row else [row["number"], row["square"]] for row in rows]
print(json.dumps(values), flush=True)
# On a busy machine, threads of Arrow are still at work, and abort a process that ends as usual.
os._exit(0)
"""
LEASES = """
import json
from include.control.leases import lease
from include.control.store import database
from include.settings import settings
with database.reading(database.connect(settings().control_url)) as connection:
    holders = lease.holders(connection)
print(json.dumps({flow: [holder.host, str(holder)] for flow, holder in holders.items()}))
"""


def has_engine() -> bool:
    if not shutil.which("docker"):
        return False
    questions = (["docker", "info"], ["docker", "compose", "version"])
    return all(subprocess.run(words, capture_output=True, timeout=60).returncode == 0 for words in questions)


@dataclass
class Platform:
    """A copy of this checkout, and the name of its project. sent: how many numbers, from 0 on."""

    directory: Path
    name: str
    sent: int = field(default=0)

    def compose(self, *words: str, timeout_seconds: float = 300) -> str:
        command = ["docker", "compose", "--project-name", self.name, *words]
        result = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
        assert result.returncode == 0, f"{words}: {result.stdout[-2_000:]}{result.stderr[-2_000:]}"
        return result.stdout

    def run(self, *words: str) -> str:
        return self.compose("exec", "--no-TTY", SHELL, "with-secrets", *words)

    def python(self, code: str, *arguments: str) -> str:
        return self.run("python", "-c", code, *arguments)

    def answer(self, *words: str) -> str:
        """What a command prints, also if it fails."""
        command = ["docker", "compose", "--project-name", self.name, "exec", "--no-TTY", SHELL, "with-secrets", *words]
        result = subprocess.run(
            command, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
        )
        return result.stdout

    def state(self, flow: str = BRONZE) -> str:
        """The state of a flow by `sluice status`, or why it does not know it."""
        answer = self.answer("sluice", "status", "--json")
        try:
            return str(next(each["state"] for each in json.loads(answer) if each["flow"] == flow))
        except ValueError:
            return answer.strip()

    def is_well(self, service: str) -> bool:
        return "(healthy)" in self.compose("ps", "--all", "--format", "{{.Status}}", service)

    def start(self, service: str, seconds: float) -> None:
        self.compose("start", service)
        wait_until(partial(self.is_well, service), seconds, self.details, 2)

    def network(self, verb: str, service: str) -> None:
        """verb: `disconnect` or `connect`."""
        names = ["--alias", service] if verb == "connect" else []
        _docker("network", verb, *names, f"{self.name}_default", f"{self.name}-{service}-1")

    @contextmanager
    def half_open(self, service: str, port: int) -> Iterator[None]:
        """Nothing that the container sends to this port arrives during the block, and nothing refuses it. As root."""
        process = _docker("inspect", "--format", "{{.State.Pid}}", f"{self.name}-{service}-1").strip()
        rule = ("OUTPUT", "--protocol", "tcp", "--dport", str(port), "--jump", "DROP")
        firewall = ("nsenter", "--target", process, "--net", "iptables")
        subprocess.run([*firewall, "--append", *rule], check=True, timeout=60)
        try:
            yield
        finally:
            subprocess.run([*firewall, "--delete", *rule], check=True, timeout=60)

    def drivers_on(self, service: str) -> list[str]:
        """The command lines of drivers in the container of a worker. It answers also without a network."""
        lines = _docker("top", f"{self.name}-{service}-1", "-eo", "pid,args", "-ww").splitlines()
        return [line for line in lines if "jobs/stream.py" in line]

    def details(self) -> str:
        return self.compose("ps", "--all") + self.compose("logs", "--no-color", "--tail", "20")[-8_000:]

    def secrets(self) -> dict[str, str]:
        values = compose_env.variables((self.directory / ".env").read_text())
        return {name: values[name] for name in compose_env.SECRETS}

    def shown_by_the_engine(self) -> dict[str, str]:
        """By place: what the engine says of this project's containers, their processes and their logs."""
        label = f"label=com.docker.compose.project={self.name}"
        containers = _docker("ps", "--all", "--quiet", "--filter", label).split()
        running = _docker("ps", "--quiet", "--filter", label).split()
        return {
            "docker inspect": _docker("inspect", *containers),
            "docker logs": "".join(_docker("logs", container) for container in containers),
            "docker top": "".join(_docker("top", container, "-eo", "pid,args", "-ww") for container in running),
        }

    def leases(self) -> dict[str, list[str]]:
        """By flow: the host of the driver that holds it, and that driver."""
        found: dict[str, list[str]] = json.loads(self.python(LEASES))
        return found

    def driver_hosts(self) -> set[str]:
        """The hosts of the drivers that hold a lease."""
        return {host for host, _ in self.leases().values()}

    def is_read_to_the_end(self) -> bool:
        flows = json.loads(self.run("sluice", "status", "--json"))
        # Views are refreshed at night.
        return all(flow["lag"]["is_up_to_date"] for flow in flows if flow["state"] != "VIEW")

    def send(self, count: int = 100) -> None:
        self.python(SEND, str(self.sent), str(self.sent + count))
        self.sent += count

    def stored(self, table: str) -> list[list[int]]:
        rows: list[list[int]] = json.loads(self.python(STORED, table.replace(".", "/")))
        return sorted(rows)

    def send_and_wait(self, seconds: float) -> None:
        """Send a hundred numbers, and wait until both tables have as many rows."""
        self.send()
        for table in (BRONZE, SILVER):
            wait_until(partial(self.has_all, table), seconds, self.details, 1)

    def has_all(self, table: str) -> bool:
        return len(self.stored(table)) >= self.sent

    def require_exact_rows(self) -> None:
        """Each number is in both tables, once, and by the ledger, too."""
        assert self.stored(BRONZE) == [[number] for number in range(self.sent)]
        assert self.stored(SILVER) == [[number, number * number] for number in range(self.sent)]
        assert BRONZE in self.run("sluice", "verify")


def _docker(*words: str) -> str:
    """What it prints, also as errors: the logs of a container are both."""
    result = subprocess.run(
        ["docker", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, f"{words[0]}: {result.stdout[-2_000:]}"
    return result.stdout
