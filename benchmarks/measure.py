"""What every comparison shares: CPU of process trees, a watch on what others burn, turns, and one table of ratios."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import psutil

# Above this share of the machine, burnt by processes that the benchmark did not start, a figure is not trusted.
MOST_OTHERS = 0.15
OURS = "sluice"


def tree_cpu_seconds(pid: int) -> float:
    """User and system time of a process, its descendants, and those that have ended and were waited for."""
    total = 0.0
    with_children = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
    for process in [one for parent in with_children for one in (parent, *parent.children(recursive=True))]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def tree_bytes(pid: int) -> int:
    """Memory of a process and its descendants that nobody shares."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_full_info().uss for process in family)


def machine_cpu_seconds() -> float:
    """What all processes of the machine have burnt since its start, and what its host took from it."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


@dataclass(frozen=True)
class Spent:
    """What a block of work cost. others: the share of the machine that processes of others burnt meanwhile."""

    cpu_seconds: float
    wall_seconds: float
    others: float

    @property
    def is_quiet(self) -> bool:
        return self.others <= MOST_OTHERS


@dataclass(frozen=True)
class Sample:
    """Seconds so far: CPU of what is measured, on the clock, CPU of the machine, CPU of all that we started."""

    cpu: float
    wall: float
    machine: float
    ours: float

    @classmethod
    def of(cls, cpu_seconds: Callable[[], float]) -> "Sample":
        ours = tree_cpu_seconds(psutil.Process().pid)
        return cls(cpu_seconds(), time.monotonic(), machine_cpu_seconds(), ours)

    def since(self, before: "Sample") -> Spent:
        wall = self.wall - before.wall
        others = max(0.0, (self.machine - before.machine) - (self.ours - before.ours))
        return Spent(self.cpu - before.cpu, wall, others / (wall * (psutil.cpu_count() or 1)))


def spend(cpu_seconds: Callable[[], float], work: Callable[[], object]) -> Spent:
    """Do the work. cpu_seconds: what the processes under measurement have burnt so far."""
    before = Sample.of(cpu_seconds)
    work()
    return Sample.of(cpu_seconds).since(before)


def together(blocks: list[Spent]) -> Spent:
    """Several that ran one after the other."""
    wall_seconds = sum(spent.wall_seconds for spent in blocks)
    others = sum(spent.others * spent.wall_seconds for spent in blocks) / wall_seconds
    return Spent(sum(spent.cpu_seconds for spent in blocks), wall_seconds, others)


def quiet(block: Callable[[], Spent]) -> Spent:
    """The block; once more where others were busy meanwhile, and then the quieter of the two."""
    first = block()
    return first if first.is_quiet else min(first, block(), key=lambda spent: spent.others)


def in_turn(blocks: Mapping[str, Callable[[], Spent]], rounds: int) -> dict[str, list[Spent]]:
    """Each block once a round; every other round the other way round, as whoever comes second finds caches warm."""
    spent: dict[str, list[Spent]] = {name: [] for name in blocks}
    for number in range(rounds):
        for name in list(blocks)[:: -1 if number % 2 else 1]:
            spent[name].append(quiet(blocks[name]))
    return spent


@dataclass(frozen=True)
class Figure:
    """values: one for each round; less is better. is_flagged: others were busy during a round."""

    values: tuple[float, ...]
    is_flagged: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:,.3g}{' (!)' if self.is_flagged else ''}"


@dataclass(frozen=True)
class Row:
    """One thing that was measured, by system: `OURS` and its peers."""

    what: str
    unit: str
    figures: dict[str, Figure] = field(default_factory=dict)

    def ratios(self) -> dict[str, float]:
        """How many times less than each peer Sluice spends: the median over rounds, each of which compares itself."""
        ours = self.figures[OURS].values
        peers = {name: figure.values for name, figure in self.figures.items() if name != OURS}
        return {
            name: statistics.median(peer / own for own, peer in zip(ours, values, strict=True))
            for name, values in peers.items()
        }


def cpu_figure(spent: list[Spent], units: float) -> Figure:
    """CPU seconds by unit of work; units: how much of it each block did."""
    return Figure(tuple(one.cpu_seconds / units for one in spent), not all(one.is_quiet for one in spent))


# What the benchmarks of this process have found, for one table at the end.
FOUND: list[Row] = []


def found(*rows: Row) -> None:
    FOUND.extend(rows)
    print("\n".join(table(rows)), flush=True)


def table(rows: tuple[Row, ...] | list[Row]) -> Iterator[str]:
    """Lines of a Markdown table, CPU seconds first."""
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
