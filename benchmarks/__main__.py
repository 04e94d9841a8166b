"""All benchmarks: make bench"""

from benchmarks import latency, quality, sources, status, windows
from include.errors import report

report(latency.main)
report(windows.main)
report(quality.main)
report(sources.main)
report(status.main)
