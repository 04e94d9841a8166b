"""gold.heart_rate_by_model aggregates the readings of each model and minute."""

from datetime import datetime
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from include import catalog
from include.engine.rows import deduplicate
from include.engine.rows.transform import apply_transform

TABLE = catalog.load().tables["gold.heart_rate_by_model"]
SILVER_SCHEMA = "model STRING, time TIMESTAMP, heart_bpm INT, kcal DECIMAL(9,3)"


def at(second: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, 1, 12, minute, second)


@pytest.fixture
def gold(spark: SparkSession):
    """Computes gold rows, by model and minute, from silver rows."""

    def aggregate(*rows: tuple) -> dict[tuple, tuple]:
        bucket = TABLE.write.recompute
        readings = spark.createDataFrame(list(rows), SILVER_SCHEMA).withColumn(
            bucket.name, deduplicate.bucket(bucket.of, bucket.unit)
        )
        frame = apply_transform(readings, TABLE)
        assert frame.columns == [
            "model",
            "minute",
            "readings",
            "avg_heart_bpm",
            "min_heart_bpm",
            "max_heart_bpm",
            "kcal",
        ]
        gold_rows = [tuple(row) for row in frame.collect()]
        assert len({row[:2] for row in gold_rows}) == len(gold_rows)
        return {row[:2]: row[2:] for row in gold_rows}

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
    largest = Decimal("999999.999")
    assert gold(*[("Orbit", at(1), 60, largest)] * 3)[("Orbit", at(0))][-1] == 3 * largest


def test_nothing_comes_to_nothing(gold):
    assert gold() == {}
