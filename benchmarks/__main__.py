"""All benchmarks: make bench"""

from benchmarks import latency
from include.errors import report

report(latency.main)
