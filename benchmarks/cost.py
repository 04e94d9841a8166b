"""What a platform of so many flows and megabytes needs: python -m benchmarks.cost [--flows N] [--megabytes N]

A model over measured parts, without a run. Each part names the row of benchmarks/figures.json, or the page, that it
comes from. Without arguments, it prints the table of docs/operate/cost.md.
"""

import argparse
import math
from dataclasses import dataclass
from functools import cache

from benchmarks import plots
from benchmarks.idle_flows import APART
from benchmarks.small_batches import BEFORE
from benchmarks.support.measure import OURS
from benchmarks.to_gold import RATES
from include.control.flows import scale
from include.errors import UsageError, report

LAYERS = ("bronze", "silver", "gold")
MINUTES_A_MONTH = 43_800
SECONDS_A_DAY = 86_400

# docs/project/where-the-cpu-goes.md, "Where the CPU of a backlog goes": each layer alone over 2,000,000 records.
CPU_SECONDS_A_MILLION = {"bronze": 4.0, "silver": 20.0, "gold": 4.0}
# docs/project/benchmark-figures.md, "Small batches": of a Delta checkpoint, which every hundredth commit writes.
CPU_SECONDS_OF_A_CHECKPOINT, COMMITS_A_CHECKPOINT = 3.0, 100
# docs/concepts/fast-path.md: from so many records on, Spark's writers write a batch.
MOST_ON_THE_FAST_PATH = {"bronze": 10_000, "silver": 50_000, "gold": 50_000}
# The same page: of bronze, without executors.
MOST_LOCAL_RECORDS = 2_000_000
# docs/concepts/supervision.md: 300 flows in 10 drivers cost a run 7 s of CPU, of which loading Airflow takes 2.5.
SUPERVISOR_CPU_SECONDS, SUPERVISOR_CPU_SECONDS_A_FLOW = 2.5, 4.5 / 300
# docs/operate/sizes.md: memory of all processes of `make up` at first, which is 2.2 GB, less its driver. In seven
# minutes with 500 events per second it grew by 1.1 GB, all of which counts as that of the driver's heap.
PLATFORM_GB, HEAP_MB = 1.6, 1_100
# docs/concepts/object-store-requests.md, by layer: LIST, PUT, GET, HEAD of a batch.
REQUESTS_A_BATCH = {"bronze": (0, 5, 3, 6), "silver": (2.3, 5.2, 6.2, 9.7), "gold": (3.9, 3.6, 8.8, 6)}
# The same page: LIST, PUT, GET, HEAD of a flow and minute, by the supervisor and by an idle flow.
REQUESTS_A_MINUTE = (43 / 9 + 3, 0, 24 / 9, 0)
PUT = 1
USD_A_REQUEST = (5e-6, 5e-6, 0.4e-6, 0.4e-6)
# Sluice writes large objects in parts of this size, which is the default of S3A.
PART_BYTES = 64 * 2**20
# docs/project/benchmark-figures.md, "In bulk": bytes at rest of a record of 200 bytes in bronze.
BYTES_AT_REST = 133e6 / 3e6 / 200

# Chosen, not measured: what is bought for what is used, and when a driver is full.
UTILISATION = scale.UTILISATION
CORES_OF_A_DRIVER = 4
MOST_FLOWS_OF_A_DRIVER = 32
CORES_OF_A_MACHINE = 16
EXECUTOR_GB = 2


@dataclass(frozen=True)
class Parts:
    """What was measured. CPU in seconds, memory in MB. What ends with a flow is for each flow beyond none.

    batch, wide_batch: of a layer, with few records: on the fast path, and by Spark's writers before there was one.
    """

    idle_cpu_a_minute: float
    idle_cpu_a_minute_a_flow: float
    driver_mb: float
    driver_mb_a_flow: float
    batch: dict[str, float]
    wide_batch: dict[str, float]


@dataclass(frozen=True)
class Load:
    """flows: bronze, silver and gold in equal numbers. megabytes: a second, which the bronze flows share.

    interval_seconds: between batches of a flow. record_bytes: of a Kafka record.
    """

    flows: int
    megabytes: float
    interval_seconds: float = 2.0
    record_bytes: int = 200

    @property
    def chains(self) -> float:
        return self.flows / len(LAYERS)

    @property
    def records_a_second(self) -> float:
        return self.megabytes * 1e6 / self.record_bytes

    @property
    def records_a_batch(self) -> float:
        return self.records_a_second / self.chains * self.interval_seconds

    @property
    def batches_a_minute(self) -> float:
        """Of a flow. A batch needs a record."""
        return 60 / self.interval_seconds * min(1.0, self.records_a_batch)


@dataclass(frozen=True)
class Need:
    """What to buy. cores: of drivers, executors and the supervisor, busy for `UTILISATION` of the time.

    executors: of one core each; 0: the drivers compute their batches themselves.
    """

    cores: float
    memory_gb: float
    drivers: int
    executors: int
    requests_a_month: float
    usd_a_month: float
    bronze_gb_a_day: float


@cache
def parts() -> Parts:
    """Raises UsageError if a row is missing."""
    idle, memory = (figures(f"one more idle flow, 1 to 32{what}") for what in ("", ": memory"))
    # Percent of a core.
    first_cpu, flow_cpu = (0.6 * idle[name] for name in (APART, OURS))
    batches = {layer: figures(f"{layer}: batch of 100 rows, warm") for layer in LAYERS}
    return Parts(
        idle_cpu_a_minute=first_cpu - flow_cpu,
        idle_cpu_a_minute_a_flow=flow_cpu,
        driver_mb=memory[APART] - memory[OURS] + HEAP_MB,
        driver_mb_a_flow=memory[OURS],
        batch={layer: of_system[OURS] for layer, of_system in batches.items()},
        wide_batch={layer: of_system[BEFORE] for layer, of_system in batches.items()},
    )


def figures(what: str, unit: str | None = None) -> dict[str, float]:
    """By system, the median of a row of the file of figures."""
    for row in plots.read(plots.FIGURES):
        if row.what == what and unit in (None, row.unit):
            return {system: each.median for system, each in row.figures.items()}
    raise UsageError(f"{plots.FIGURES} has no row '{what}': run its benchmark, and add what it wrote")


def fixed_cpu(part: Parts, drivers: int, flows: int, batches: dict[str, float], wide: frozenset[str]) -> float:
    """CPU seconds a minute of drivers, beyond those of rows. batches: a minute, of all flows of a layer.

    wide: the layers whose batches Spark's writers write.
    """
    idle = drivers * part.idle_cpu_a_minute + flows * part.idle_cpu_a_minute_a_flow
    checkpoint = CPU_SECONDS_OF_A_CHECKPOINT / COMMITS_A_CHECKPOINT
    each = {layer: (part.wide_batch if layer in wide else part.batch)[layer] for layer in LAYERS}
    return idle + sum(count * (each[layer] + checkpoint) for layer, count in batches.items())


def rows_cpu(million_records: float, layers: tuple[str, ...] = LAYERS) -> float:
    """CPU seconds for records that all of these layers read."""
    return million_records * sum(CPU_SECONDS_A_MILLION[layer] for layer in layers)


def need(load: Load, part: Parts) -> Need:
    """One machine, as long as it is large enough; then drivers with executors."""
    alone = _need(load, part, on_cluster=False)
    return alone if alone.cores <= CORES_OF_A_MACHINE else _need(load, part, on_cluster=True)


def _need(load: Load, part: Parts, on_cluster: bool) -> Need:
    wide = frozenset(
        layer
        for layer, most in MOST_ON_THE_FAST_PATH.items()
        if load.records_a_batch > (MOST_LOCAL_RECORDS if layer == "bronze" and not on_cluster else most)
    )
    batches = dict.fromkeys(LAYERS, load.chains * load.batches_a_minute)
    # Of all drivers, so that their number follows from it.
    fixed_cores = fixed_cpu(part, 0, load.flows, batches, wide) / 60 / UTILISATION
    drivers = max(math.ceil(load.flows / MOST_FLOWS_OF_A_DRIVER), math.ceil(fixed_cores / CORES_OF_A_DRIVER))
    supervisor = SUPERVISOR_CPU_SECONDS + load.flows * SUPERVISOR_CPU_SECONDS_A_FLOW
    cores = fixed_cores + (drivers * part.idle_cpu_a_minute + supervisor) / 60 / UTILISATION
    if on_cluster:
        executors = drivers * math.ceil(executors_needed(load, part, wide) / drivers)
        cores += executors
    else:
        executors = 0
        cores += rows_cpu(load.records_a_second / 1e6) / UTILISATION
    memory_mb = drivers * part.driver_mb + load.flows * part.driver_mb_a_flow
    requests = [a_minute * load.flows for a_minute in REQUESTS_A_MINUTE]
    for layer, of_a_batch in REQUESTS_A_BATCH.items():
        more_parts = max(0, math.ceil(load.records_a_batch * load.record_bytes * BYTES_AT_REST / PART_BYTES) - 1)
        for kind, count in enumerate(of_a_batch):
            requests[kind] += batches[layer] * (count + (more_parts if kind == PUT and layer != "gold" else 0))
    return Need(
        cores=cores,
        memory_gb=PLATFORM_GB + memory_mb / 1e3 + executors * EXECUTOR_GB,
        drivers=drivers,
        executors=executors,
        requests_a_month=sum(requests) * MINUTES_A_MONTH,
        usd_a_month=sum(map(float.__mul__, map(float, requests), USD_A_REQUEST)) * MINUTES_A_MONTH,
        bronze_gb_a_day=load.megabytes * BYTES_AT_REST * SECONDS_A_DAY / 1e3,
    )


def executors_needed(load: Load, part: Parts, wide: frozenset[str]) -> float:
    """What `scale` finds that the flows need, of one core each, once it has seen batches of several sizes."""
    arrivals, total = load.records_a_second / load.chains, 0.0
    for layer in LAYERS:
        fixed = (part.wide_batch if layer in wide else part.batch)[layer]
        sizes = [max(1, round(load.records_a_batch)) * factor for factor in (1, 2, 4)]
        batches = tuple(scale.Batch(size, fixed + rows_cpu(size / 1e6, (layer,)), 1) for size in sizes)
        seen = scale.Load(layer, arrivals, 0, None, batches)
        total += load.chains * scale.scale(scale.Observed(1, 1, 10_000, 600.0, 1, (seen,), ())).verdict.need
    return total


def checks(part: Parts) -> list[tuple[str, float, float]]:
    """What was measured as a whole, and what the model says of it."""
    found = []
    for rate in RATES:
        what = f"trackers alone at {rate:,} events/s"
        # In three flows, which have a batch every two seconds.
        batches = dict.fromkeys(LAYERS, 30.0)
        modelled = fixed_cpu(part, 1, len(LAYERS), batches, frozenset()) + rows_cpu(rate * 60 / 1e6)
        found.append((f"{what}, CPU seconds a minute", figures(what, "CPU-s a minute")[OURS], modelled))
    bulk = "Kafka to gold, 2,000,000 readings"
    return [*found, (f"{bulk}, CPU seconds per million", figures(bulk)[OURS], rows_cpu(1.0))]


def table(loads: list[Load], part: Parts) -> list[str]:
    """The lines of a Markdown table."""
    lines = [
        "| flows | MB/s | a batch each | cores | memory | drivers | executors | bronze a day | requests a month |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for load in loads:
        it = need(load, part)
        lines.append(
            f"| {load.flows:,} | {load.megabytes:,g} | {load.interval_seconds:g} s | {about(it.cores)} | "
            f"{about(it.memory_gb)} GB | {it.drivers} | {it.executors or 'none'} | {about(it.bronze_gb_a_day)} GB | "
            f"{about(it.requests_a_month / 1e6)} million, {about(it.usd_a_month)} USD |"
        )
    return lines


def about(value: float) -> str:
    """Two digits, because the model is no better."""
    return f"{float(f'{value:.2g}'):,.{0 if value >= 10 else 1}f}"


TYPICAL = [
    Load(9, 0.01),
    Load(9, 1),
    Load(30, 1),
    Load(30, 1, 10),
    Load(100, 10, 10),
    Load(100, 100, 10),
    Load(300, 10, 10),
    Load(300, 100, 10),
    Load(1_000, 10, 60),
    Load(1_000, 100, 60),
    Load(1_000, 1_000, 60),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__.splitlines()[0])
    parser.add_argument("--flows", type=int, help="bronze, silver and gold together")
    parser.add_argument("--megabytes", type=float, help="a second, of all of them")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between batches of a flow, default 2")
    parser.add_argument("--record", type=int, default=200, help="bytes of a record, default 200")
    arguments = parser.parse_args()
    if (arguments.flows is None) != (arguments.megabytes is None):
        raise UsageError("--flows and --megabytes belong together: give both, or none for the typical sizes")
    chosen = [Load(arguments.flows, arguments.megabytes, arguments.interval, arguments.record)]
    print(*table(chosen if arguments.flows else TYPICAL, parts()), sep="\n")
    print("\n| what was measured as a whole | measured | by the model |\n|---|---|---|")
    for what, whole, modelled in checks(parts()):
        print(f"| {what} | {whole:.3g} | {modelled:.3g} |")


if __name__ == "__main__":
    report(main)
