"""A platform that `docker compose up` has started from a copy of this checkout, with what tests ask of it."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from include.containers import compose_env
from tests.support.waiting import wait_until

# A container that no test ends.
SHELL = "supervisor-watchdog"
WORKERS = ("spark-worker-1", "spark-worker-2")
EXECUTOR = "CoarseGrainedExecutorBackend"
BRONZE, SILVER = "bronze.numbers", "silver.squares"
# A number from here on costs an executor tenths of a second, so that it can be ended in the middle of a batch.
SLOW_FROM = 1_000_000
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
        SELECT
            number,
            number * number
            + aggregate(sequence(1, IF(number < SLOW_FROM, 1, 4000000)), 0L, (sum, x) -> sum + x, sum -> sum % 1)
            AS square
        FROM (SELECT CAST(CAST(value AS STRING) AS BIGINT) AS number FROM source)
    ''',
    interval_seconds=1,
)
""".replace("SLOW_FROM", str(SLOW_FROM)),
}
# In front of the store. Its process and its place in the network are those of a service.
STORE_PROXY = {
    "store-proxy": {
        "image": "sluice",
        "build": {"context": ".", "target": "sluice"},
        "command": "python -m tests.support.s3.compose_proxy",
        "init": True,
        "restart": "unless-stopped",
        "volumes": ["./tests:/opt/sluice/tests:ro"],
    }
}
# With libfaketime, threads of Python and librdkafka that wait for a time spin.
SLOW_CLOCK = """
FROM sluice AS sluice
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY containers/slow_clock.c /tmp/
RUN gcc -O2 -shared -fPIC -o /usr/lib/slow-clock.so /tmp/slow_clock.c
USER sluice
"""
SEND = """
import os, sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": os.environ["SLUICE_KAFKA"], "enable.idempotence": True})
for number in sys.argv[1:]:
    producer.produce("numbers", number)
assert producer.flush(240) == 0
"""
STORED = """
import json, os, sys
from include.delta import stored_table
table = stored_table.find_table(sys.argv[1])
rows = table.to_pyarrow_table().to_pylist() if table else []
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
    """A copy of this checkout, and the name of its project. sent: the numbers in the topic, in order."""

    directory: Path
    name: str
    sent: list[int] = field(default_factory=list)

    def compose(self, *words: str, timeout_seconds: float = 300) -> str:
        command = ["docker", "compose", "--project-name", self.name, *words]
        result = subprocess.run(
            command,
            cwd=self.directory,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
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
            command,
            cwd=self.directory,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
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

    @contextmanager
    def changed(self, services: dict[str, Any]) -> Iterator[None]:
        """Run the platform with more services, or with more keys of those it has, during the block.

        What earlier blocks have changed stays so.
        """
        file = self.directory / "docker-compose.override.yaml"
        before = file.read_text() if file.exists() else "{}"
        present = yaml.safe_load(before).get("services", {})
        file.write_text(yaml.safe_dump({"services": present | services}))
        try:
            self.compose("up", "--detach", "--build", timeout_seconds=1_800)
            yield
        finally:
            file.write_text(before)

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
        return [line for line in self._processes_of(service) if "jobs/stream.py" in line]

    @contextmanager
    def slow_clocks(self, *services: str) -> Iterator[None]:
        """From now on, during the block, the time of day in these containers passes at 0.8 of its speed."""
        shutil.copy(Path(__file__).with_name("slow_clock.c"), self.directory / "containers")
        (self.directory / "slow-clock.Dockerfile").write_text(SLOW_CLOCK)
        variables = {"LD_PRELOAD": "/usr/lib/slow-clock.so", "SLOW_SINCE": str(int(time.time()))}
        build = {"dockerfile": "slow-clock.Dockerfile"}
        changed = {"image": "sluice-slow-clock", "build": build, "environment": variables}
        with self.changed(dict.fromkeys(services, changed)):
            yield
        self.compose("up", "--detach", timeout_seconds=1_800)

    def seconds_by_its_clock(self, service: str, seconds: float) -> float:
        """How long a wait of so many seconds lasts by the time of day in the container."""
        code = f"import time; begin = time.time(); time.sleep({seconds}); print(time.time() - begin)"
        return float(self.compose("exec", "--no-TTY", service, "python", "-c", code))

    def busy_executor(self) -> psutil.Process | None:
        """An executor on a worker that computes now, if there is one."""
        lines = [line for worker in WORKERS for line in self._processes_of(worker)]
        found = [psutil.Process(int(line.split()[0])) for line in lines if EXECUTOR in line]
        return next((process for process in found if process.cpu_percent(interval=1) > 50), None)

    def details(self) -> str:
        return self.compose("ps", "--all") + self.compose("logs", "--no-color", "--tail", "20")[-8_000:]

    def _processes_of(self, service: str) -> list[str]:
        """A line for each, with its number on this machine and its command."""
        return _docker("top", f"{self.name}-{service}-1", "-eo", "pid,args", "-ww").splitlines()[1:]

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

    def send(self, numbers: Iterable[int] = ()) -> None:
        """Send these numbers, or a hundred small ones."""
        added = [*numbers] or [*range(len(self.sent), len(self.sent) + 100)]
        self.python(SEND, *map(str, added))
        self.sent += added

    def stored(self, table: str) -> list[list[int]]:
        rows: list[list[int]] = json.loads(self.python(STORED, table))
        return sorted(rows)

    def send_and_wait(self, seconds: float) -> None:
        """Send a hundred numbers, and wait until both tables have as many rows."""
        self.send()
        for table in (BRONZE, SILVER):
            wait_until(partial(self.has_all, table), seconds, self.details, 1)

    def has_all(self, table: str) -> bool:
        return len(self.stored(table)) >= len(self.sent)

    def require_exact_rows(self) -> None:
        """Each number is in both tables, once, and by the ledger, too."""
        assert self.stored(BRONZE) == [[number] for number in sorted(self.sent)]
        assert self.stored(SILVER) == [[number, number * number] for number in sorted(self.sent)]
        assert BRONZE in self.run("sluice", "verify")


def _environment() -> dict[str, str]:
    """Compose prefers variables to `.env`, and this process has those of its own platform."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_", "SLUICE_"))}


def _docker(*words: str) -> str:
    """What it prints, also as errors: the logs of a container are both."""
    result = subprocess.run(
        ["docker", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, f"{words[0]}: {result.stdout[-2_000:]}"
    return result.stdout
