"""Shared parts of the benchmarks: CPU of process trees, CPU of other processes, rounds, and the table of ratios."""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import psutil

# A figure is not reliable if processes outside the benchmark use more than this share of the machine.
MOST_OTHERS = 0.15
OURS = "sluice"


def tree_cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants, including ended ones that were waited for."""
    total = 0.0
    roots = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
    for process in [member for root in roots for member in (root, *root.children(recursive=True))]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def tree_bytes(pid: int) -> int:
    """Unique set size (USS) of a process and its descendants, in bytes."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_full_info().uss for process in processes)


def machine_cpu_seconds() -> float:
    """CPU seconds of all processes since the start of the machine, plus steal time of its host."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


@dataclass(frozen=True)
class Spent:
    """The cost of a block of work. others: the share of the machine that other processes used meanwhile."""

    cpu_seconds: float
    wall_seconds: float
    others: float

    @property
    def is_quiet(self) -> bool:
        return self.others <= MOST_OTHERS


@dataclass(frozen=True)
class Sample:
    """Seconds so far. cpu: measured processes. wall: clock. machine: all CPU. ours: CPU of this process tree."""

    cpu: float
    wall: float
    machine: float
    ours: float

    @classmethod
    def of(cls, cpu_seconds: Callable[[], float]) -> "Sample":
        started_cpu = tree_cpu_seconds(psutil.Process().pid)
        return cls(cpu_seconds(), time.monotonic(), machine_cpu_seconds(), started_cpu)

    def since(self, before: "Sample") -> Spent:
        wall = self.wall - before.wall
        others = max(0.0, (self.machine - before.machine) - (self.ours - before.ours))
        return Spent(self.cpu - before.cpu, wall, others / (wall * (psutil.cpu_count() or 1)))


def spend(cpu_seconds: Callable[[], float], work: Callable[[], object]) -> Spent:
    """Do the work, and return its cost. cpu_seconds: returns the CPU seconds of the measured processes so far."""
    before = Sample.of(cpu_seconds)
    work()
    return Sample.of(cpu_seconds).since(before)


def together(blocks: list[Spent]) -> Spent:
    """The total cost of blocks that ran in sequence."""
    wall_seconds = sum(spent.wall_seconds for spent in blocks)
    others = sum(spent.others * spent.wall_seconds for spent in blocks) / wall_seconds
    return Spent(sum(spent.cpu_seconds for spent in blocks), wall_seconds, others)


def run_undisturbed(block: Callable[[], Spent]) -> Spent:
    """Run the block. If other processes were busy, run it again, and return the less disturbed run."""
    first = block()
    return first if first.is_quiet else min(first, block(), key=lambda spent: spent.others)


def run_alternating(blocks: Mapping[str, Callable[[], Spent]], rounds: int) -> dict[str, list[Spent]]:
    """Run each block once a round. The order alternates, because a later block finds warm caches."""
    spent: dict[str, list[Spent]] = {name: [] for name in blocks}
    for number in range(rounds):
        for name in list(blocks)[:: -1 if number % 2 else 1]:
            spent[name].append(run_undisturbed(blocks[name]))
    return spent


@dataclass(frozen=True)
class Figure:
    """values: a value per round; less is better. is_flagged: other processes were busy during a round."""

    values: tuple[float, ...]
    is_flagged: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:,.3g}{' (!)' if self.is_flagged else ''}"


@dataclass(frozen=True)
class Row:
    """A measurement. figures: by system, `OURS` and its peers. date: when it was made."""

    what: str
    unit: str
    figures: dict[str, Figure] = field(default_factory=dict)
    date: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d}")

    def ratios(self) -> dict[str, float]:
        """For each peer, its value divided by that of Sluice: the median of the ratios of each round."""
        ours = self.figures[OURS].values
        peers = {name: figure.values for name, figure in self.figures.items() if name != OURS}
        return {
            name: statistics.median(peer_value / our_value for our_value, peer_value in zip(ours, values, strict=True))
            for name, values in peers.items()
        }


def cpu_figure(spent: list[Spent], units: float) -> Figure:
    """CPU seconds per unit of work. units: number of units in a block."""
    return Figure(tuple(block.cpu_seconds / units for block in spent), not all(block.is_quiet for block in spent))


# The results of all benchmarks of this process, for the table at the end.
RECORDED_ROWS: list[Row] = []


def record(*rows: Row) -> None:
    RECORDED_ROWS.extend(rows)
    print("\n".join(table(rows)), flush=True)


def to_json(rows: Iterable[Row]) -> str:
    """The rows as an array of JSON, one row a line."""
    return "[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n"


def from_json(text: str) -> list[Row]:
    """The rows that `to_json` wrote."""
    rows = json.loads(text)
    return [Row(**{**row, "figures": {name: _figure(**each) for name, each in row["figures"].items()}}) for row in rows]


def _figure(values: list[float], is_flagged: bool) -> Figure:
    return Figure(tuple(values), is_flagged)


def table(rows: tuple[Row, ...] | list[Row]) -> Iterator[str]:
    """The lines of a Markdown table, with CPU seconds first."""
    yield "| what | unit | sluice | against | its figure | times less |"
    yield "|---|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: not row.unit.startswith("CPU")):
        ours, ratios = row.figures.get(OURS), row.ratios() if OURS in row.figures else {}
        for name, ratio in ratios.items():
            yield f"| {row.what} | {row.unit} | {ours} | {name} | {row.figures[name]} | {ratio:.2f} |"
        if not ratios:
            yield f"| {row.what} | {row.unit} | {ours or ''} | | | |"
    if any(figure.is_flagged for row in rows for figure in row.figures.values()):
        yield f"\n(!) processes of others burnt more than {MOST_OTHERS:.0%} of the machine in a round, twice."
