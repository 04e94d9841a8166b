"""gold.heart_rate_by_model: what one minute of one model comes to."""

from datetime import datetime
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from include import catalog
from include.engine.batch import data_skipping
from include.engine.batch.table_rows import apply_transform

TABLE = catalog.load().tables["gold.heart_rate_by_model"]
SILVER = "model STRING, time TIMESTAMP, heart_bpm INT, kcal DECIMAL(9,3)"


def at(second: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, 1, 12, minute, second)


@pytest.fixture
def gold(spark: SparkSession):
    """Gold rows of silver rows, by model and minute."""

    def aggregate(*rows: tuple) -> dict[tuple, tuple]:
        by = TABLE.write.recompute
        readings = spark.createDataFrame(list(rows), SILVER).withColumn(by.name, data_skipping.bucket(by.of, by.unit))
        made = apply_transform(readings, TABLE)
        assert made.columns == [
            "model",
            "minute",
            "readings",
            "avg_heart_bpm",
            "min_heart_bpm",
            "max_heart_bpm",
            "kcal",
        ]
        found = [tuple(row) for row in made.collect()]
        assert len({row[:2] for row in found}) == len(found)
        return {row[:2]: row[2:] for row in found}

    return aggregate


def test_a_minute_comes_to_its_count_average_extremes_and_sum(gold):
    assert gold(
        ("Stride", at(1), 60, Decimal("0.100")),
        ("Stride", at(59), 61, Decimal("0.250")),
        ("Stride", at(30), 71, None),
    ) == {("Stride", at(0)): (3, 64.0, 60, 71, Decimal("0.350"))}


def test_minutes_and_models_do_not_mix(gold):
    assert gold(
        ("Stride", at(59), 60, None),
        ("Stride", at(0, minute=1), 70, None),
        ("Orbit", at(59), 80, None),
    ) == {
        ("Stride", at(0)): (1, 60.0, 60, 60, None),
        ("Stride", at(0, minute=1)): (1, 70.0, 70, 70, None),
        ("Orbit", at(0)): (1, 80.0, 80, 80, None),
    }


def test_readings_without_a_model_or_a_time_are_counted_too(gold):
    assert gold((None, at(1), 60, None), (None, at(2), 62, None), ("Orbit", None, 90, None)) == {
        (None, at(0)): (2, 61.0, 60, 62, None),
        ("Orbit", None): (1, 90.0, 90, 90, None),
    }


def test_a_sum_does_not_overflow_where_its_parts_did_not(gold):
    most = Decimal("999999.999")
    assert gold(*[("Orbit", at(1), 60, most)] * 3)[("Orbit", at(0))][-1] == 3 * most


def test_nothing_comes_to_nothing(gold):
    assert gold() == {}
