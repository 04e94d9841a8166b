"""The fast path and Spark's path write the same rows, quarantine and metadata for generated batches."""

from dataclasses import replace

import pytest

from tests.support.flows import FULL
from tests.support.generated import COLUMNS, MODES, SEED, Generator, store_titles
from tests.support.twins import Source, Twin, differences

BATCHES = 12 if FULL else 3
# Of these, one batch has enough.
IN_SHORT_RUNS = (
    "unique",
    "unique with watermark",
    "rule unique",
    "merge of two keys",
    "merge with watermark",
    "partial",
    "history with truncates",
    "aggregate within reach",
    "lookup",
)
# Of these, Spark takes the batches with a truncate.
WITH_TRUNCATES = ("merge of two keys", "history with truncates")


@pytest.mark.parametrize("mode", [mode for mode in MODES if FULL or mode in IN_SHORT_RUNS])
def test_both_paths_leave_the_same_rows_quarantine_and_metadata(spark, name, tmp_path, mode):
    print(f"seed {SEED}")
    generator, source, declared = Generator(SEED), Source(spark, f"bronze.{name}", COLUMNS), MODES[mode](name)
    twins: list[Twin] = []
    flags = []
    for number in range(BATCHES):
        rows = generator.batch(number)
        if declared.lookups:
            store_titles(spark, declared.lookups[0].table, rows)
        frame = source.append(rows)
        twins = twins or [
            Twin(spark, tmp_path / kind, replace(declared, name=f"silver.{name}_{kind}"), kind == "fast")
            for kind in ("fast", "spark")
        ]
        for twin in twins:
            twin.write(frame, number)
        first, second = (twin.contents for twin in twins)
        if declared.merges_changes and "history" not in mode and mode != "partial":
            # Spark does not look at the stored rows, and retains deletes of earlier changes, too.
            assert not first.pop("retained") - second.pop("retained"), (SEED, number)
        assert not differences(first, second), (SEED, number)
        flags.append([twin.newest.metadata["fast_path"] for twin in twins])
    expected = [True, False]
    assert expected in flags if mode in WITH_TRUNCATES else set(map(tuple, flags)) == {tuple(expected)}, flags
