"""All benchmarks: make bench"""

from benchmarks import latency, windows
from include.errors import report

report(latency.main)
report(windows.main)
