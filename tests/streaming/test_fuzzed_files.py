"""Of any files, each is in its table, in the quarantine, or holds no record; no flow stops."""

import os
import random

import pytest

from include.ledger import verify
from include.spec import Table
from tests.support import fuzzed_files
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.landing import Landing


def accounted(landing: Landing, table: Table, format_: str) -> None:
    """Checks that each file that is visible in the folder is in one place, with all its records."""
    counts: dict[str, int] = {}
    for row in rows_of(table.name):
        counts[row["_filename"]] = counts.get(row["_filename"], 0) + 1
    named = {row["_filename"] for row in rows_of(table.quarantine)}
    files = dict(fuzzed_files.visible(landing.folder))
    assert counts.keys() | named <= files.keys()
    for name, path in files.items():
        if name in named:
            assert name not in counts
        elif name not in counts:
            assert fuzzed_files.has_no_records(path, format_), name
        else:
            expected = fuzzed_files.records(path, format_)
            assert expected is None or counts[name] == expected, name


@pytest.mark.parametrize("files", [60, pytest.param(1_000, marks=only_in_full_runs)])
def test_every_generated_file_is_accounted_for_and_no_flow_stops(name, run_once, capsys, files):
    """A run is repeated by SLUICE_FUZZ_SEED."""
    seed = int(os.environ.get("SLUICE_FUZZ_SEED", random.SystemRandom().randrange(10**9)))
    with capsys.disabled():
        print(f" SLUICE_FUZZ_SEED={seed}", end=" ", flush=True)
    generator = random.Random(seed)
    formats = fuzzed_files.FORMATS if files > 100 else generator.sample(fuzzed_files.FORMATS, 3)
    folders = {format_: Landing(f"{name}_{format_}") for format_ in formats}
    tables = {format_: landing.table(format_, max_files=200) for format_, landing in folders.items()}
    rounds = max(2, files // 250)
    for _ in range(rounds):
        for format_, landing in folders.items():
            fuzzed_files.drop(landing.folder, format_, generator, -(-files // len(formats) // rounds))
        run_once(*tables.values())
        for format_, landing in folders.items():
            accounted(landing, tables[format_], format_)
            verify.verify(tables[format_])
    for landing in folders.values():
        landing.remove()
