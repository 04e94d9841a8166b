"""All benchmarks: make bench"""

from importlib import import_module, util

from include.errors import report

NAMES = (
    "latency",
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
