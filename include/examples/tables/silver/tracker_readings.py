"""One row per reading that a fitness tracker took. A reading sent again counts once: the first one stays."""

from include.spec import Append, Delta, Expect, Json, Table

TABLE = Table(
    name="silver.tracker_readings",
    comment="One row per reading that a fitness tracker took",
    source=Delta("bronze.tracker_events"),
    parse=Json("value", into=("device_id", "time", "version", "model", "heart_bpm", "kcal")),
    schema="""
        device_id STRING COMMENT 'the tracker',
        time TIMESTAMP COMMENT 'when it measured',
        version STRING COMMENT 'firmware',
        model STRING COMMENT 'product name of the tracker',
        heart_bpm INT COMMENT 'heart rate, beats per minute',
        kcal DECIMAL(9,3) COMMENT 'energy burnt since the reading before, kilocalories',
        topic STRING COMMENT 'where the message came from',
        partition INT,
        offset BIGINT,
        _errors ARRAY<STRUCT<field: STRING, message: STRING>> COMMENT 'fields that could not be typed'
    """,
    time_column="time",
    write=Append(unique=("device_id", "time"), first_by=("topic", "partition", "offset")),
    expect=(
        Expect("identified", "device_id IS NOT NULL AND time IS NOT NULL"),
        Expect("plausible heart rate", "heart_bpm BETWEEN 20 AND 250"),
    ),
)
