"""All benchmarks: make bench"""

from benchmarks import latency, sources, windows
from include.errors import report

report(latency.main)
report(windows.main)
report(sources.main)
