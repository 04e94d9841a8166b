"""All benchmarks: make bench"""

from benchmarks import latency, ledger, quality, sources, windows
from include.errors import report

report(latency.main)
report(windows.main)
report(quality.main)
report(sources.main)
report(ledger.main)
