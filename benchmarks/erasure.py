"""How fast objects are scanned for erased subjects: python -m benchmarks.erasure [MEGABYTES]

Fills a home with Parquet files and logs of other people's rows, and scans it for one subject and for 1,000: seconds,
megabytes a second, and how many times as long 1,000 take.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from include.catalog import Catalog
from include.erasure import scan
from include.erasure.needles import Needles
from include.errors import report
from include.settings import settings

ROWS_A_FILE = 200_000
MEGABYTE = 10**6


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"SLUICE_HOME": directory}
        settings.cache_clear()
        unpacked = _fill(settings().home, megabytes * MEGABYTE)
        one, many = (_seconds(count) for count in (1, 1000))
    print(f"{unpacked / MEGABYTE:,.0f} MB unpacked: 1 subject {one:.1f} s, {unpacked / MEGABYTE / one:,.0f} MB/s")
    print(f"1,000 subjects {many:.1f} s, {many / one:.2f} times as long")


def _fill(home: Path, size: int) -> int:
    """Returns the unpacked size of what it wrote: as many bytes in Parquet as in logs."""
    random, written = np.random.default_rng(1), 0
    table = home / "lake" / "silver" / "people"
    table.mkdir(parents=True)
    (home / "log").mkdir()
    while written < size:
        numbers = random.integers(0, 10**8, ROWS_A_FILE)
        names = [f"user-{number:08}" for number in numbers]
        payloads = [json.dumps({"id": name, "place": place}) for place, name in enumerate(names)]
        rows = pa.table({"user": names, "payload": payloads})
        parquet.write_table(rows, table / f"part-{written}.parquet", compression="zstd")
        text = "\n".join(payloads).encode()
        (home / "log" / f"driver-{written}.log").write_bytes(text)
        written += rows.nbytes + len(text)
    return written


def _seconds(count: int) -> float:
    needles = Needles([f"person-{number:08}@example.org" for number in range(count)])
    began = time.monotonic()
    found = scan.scan(needles, Catalog({}))
    assert found.is_clean
    return time.monotonic() - began


if __name__ == "__main__":
    report(main)
