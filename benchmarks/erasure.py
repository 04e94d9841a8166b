"""How long the erasure of one subject takes, and that of 1,000 in one pass: python -m benchmarks.erasure [MEGABYTES]

Fills a table, by default with 200 MB of unpacked rows, and erases from it by the job itself, from the start of its
Spark to the certificate. The one subject has a row. The 1,000 have one each, in up to 100 files, which are all written
again. Prints the seconds of each stage, and how many times as long 1,000 take.
"""

import subprocess
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from sqlalchemy import Engine, select

from benchmarks.jobs.erase import CATALOG, PEOPLE
from benchmarks.support.session import temporary_home
from include.control.store import database
from include.control.store.job_schema import job_events
from include.erasure import certificate, requests
from include.erasure.requests import Request
from include.errors import SetupError, report
from include.lake import locations
from include.settings import ROOT, settings

ROWS_A_FILE, MEGABYTE, MANY = 1_000_000, 10**6, 1_000
ONE = "one-person@example.org"
THOUSAND = tuple(f"person-{number:04}@example.org" for number in range(MANY))


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with temporary_home():
        unpacked, files = _fill(megabytes * MEGABYTE)
        print(f"{unpacked / MEGABYTE:,.0f} MB unpacked in {files} files")
        engine = database.connect(settings().control_url)
        one, many = (_seconds(engine, subjects) for subjects in ((ONE,), THOUSAND))
    print(f"{MANY:,} subjects took {many / one:.2f} times as long as one")


def _fill(size: int) -> tuple[int, int]:
    """Returns the unpacked size and the number of files."""
    written, files = 0, 0
    while written < size:
        names = _names(files)
        payloads = pc.binary_join_element_wise('{"id": "', names, '", "of": "', pc.utf8_reverse(names), '"}', "")
        rows = pa.table({"person": names, "payload": payloads})
        write_deltalake(locations.table_path(PEOPLE.name), rows, mode="append", target_file_size=2**31)
        written, files = written + rows.nbytes, files + 1
    return written, files


def _names(file: int) -> pa.Array:
    """Returns the persons of a file: the one is in the first, and the others are spread over a hundred."""
    others = pc.cast(pa.array(range(file * ROWS_A_FILE, (file + 1) * ROWS_A_FILE)), pa.string())
    subjects = [*([ONE] if file == 0 else []), *(THOUSAND[file::100] if file < 100 else [])]
    return pa.concat_arrays([pa.array(subjects, pa.string()), pc.binary_join_element_wise("user-", others, "")])


def _seconds(engine: Engine, subjects: tuple[str, ...]) -> float:
    job = requests.plan(engine, CATALOG, Request(subjects), "a benchmark", "a benchmark")
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.jobs.erase", str(job.number)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SetupError(f"{job.id} failed:\n{result.stdout[-3000:]}{result.stderr[-3000:]}")
    seconds = time.monotonic() - began
    assert certificate.file_of(job.number).exists()
    stages = ", ".join(f"{name} {spent:.1f} s" for name, spent in _stages(engine, job.number))
    print(f"{len(subjects):,} subject{'s' * (len(subjects) > 1)}: {seconds:.1f} s, of that {stages}")
    return seconds


def _stages(engine: Engine, number: int) -> Iterator[tuple[str, float]]:
    """Yields the stages of a job, and how long each took, in seconds."""
    events = job_events.c
    of_job = select(events.at, events.details).where(events.kind == requests.KIND, events.number == number)
    with database.reading(engine) as connection:
        rows = connection.execute(of_job.where(events.details.is_not(None)).order_by(events.id)).all()
    for row, following in zip(rows, rows[1:], strict=False):
        yield row.details, following.at - row.at


if __name__ == "__main__":
    report(main)
