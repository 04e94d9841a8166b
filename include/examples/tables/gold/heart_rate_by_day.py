"""Heart rate and energy by tracker model and day: a view, recomputed each night."""

from include.spec import Delta, Replace, Table

TABLE = Table(
    name="gold.heart_rate_by_day",
    comment="Heart rate and energy by tracker model and day",
    source=Delta("gold.heart_rate_by_model"),
    schema="""
        model STRING COMMENT 'product name of the tracker', day DATE COMMENT 'the day, UTC',
        readings BIGINT COMMENT 'number of readings',
        avg_heart_bpm DOUBLE COMMENT 'beats per minute',
        min_heart_bpm INT COMMENT 'beats per minute', max_heart_bpm INT COMMENT 'beats per minute',
        kcal DECIMAL(29,3) COMMENT 'kilocalories burnt'
    """,
    transform="""
        SELECT model, CAST(minute AS DATE) AS day, sum(readings) AS readings,
            sum(avg_heart_bpm * readings) / sum(readings) AS avg_heart_bpm,
            min(min_heart_bpm) AS min_heart_bpm, max(max_heart_bpm) AS max_heart_bpm, sum(kcal) AS kcal
        FROM source GROUP BY model, CAST(minute AS DATE)
    """,
    write=Replace(),
    schedule="30 3 * * *",
)
