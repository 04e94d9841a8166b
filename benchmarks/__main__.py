"""Runs all benchmarks, and prints a table of the ratios to their peers: make bench

It also writes the figures to `$SLUICE_HOME/benchmarks.json`, which `python -m benchmarks.plots` takes.
benchmarks.latency is not included: it needs a running platform, whose CPU usage would disturb the other benchmarks.
"""

import sys
import time
from importlib import import_module, util

from benchmarks.support import measure
from include.errors import SluiceError
from include.progress import counted
from include.settings import settings

NAMES = (
    "small_batches",
    "log_length",
    "to_gold",
    "bulk_bronze",
    "bulk_medallion",
    "idle_flows",
    "windows",
    "quality",
    "parsing",
    "sources",
    "progress",
    "status",
    "console",
    "hundreds",
    "growth",
    "ledger",
    "backfill",
    "in_driver",
    "dimensions",
    "joins",
    "s3.requests",
)

failed = []
began_at = time.monotonic()
# `make remove-examples` removes the benchmarks that need the examples.
names = [name for name in NAMES if util.find_spec(f"benchmarks.{name}")]
for number, name in enumerate(names):
    how_far = counted(number, len(names), f"benchmarks done, {time.monotonic() - began_at:,.0f} s")
    print(f"{how_far}; next {name}", file=sys.stderr, flush=True)
    try:
        import_module(f"benchmarks.{name}").main()
    except SluiceError as error:
        print(f"sluice: benchmarks.{name}: {error}", file=sys.stderr, flush=True)
        failed.append(name)
print(*measure.table(measure.RECORDED_ROWS), sep="\n")
results = settings().home / "benchmarks.json"
results.write_text(measure.to_json(measure.RECORDED_ROWS))
print(f"\n{results}")
sys.exit(f"without a figure: {', '.join(failed)}" if failed else 0)
