"""All benchmarks: make bench"""

from benchmarks import backfill, in_driver, latency, ledger, progress, quality, sources, status, windows
from include.errors import report

report(latency.main)
report(windows.main)
report(quality.main)
report(sources.main)
report(progress.main)
report(status.main)
report(ledger.main)
report(backfill.main)
report(in_driver.main)
