"""All benchmarks, and at the end one table of ratios of those that have peers: make bench"""

from importlib import import_module, util

from benchmarks import measure
from include.errors import report

NAMES = (
    "latency",
    "small_batches",
    "windows",
    "quality",
    "sources",
    "progress",
    "status",
    "hundreds",
    "growth",
    "ledger",
    "backfill",
    "in_driver",
    "dimensions",
)

for name in NAMES:
    # Those of the examples go with them.
    if util.find_spec(f"benchmarks.{name}"):
        report(import_module(f"benchmarks.{name}").main)
print(*measure.table(measure.FOUND), sep="\n")
