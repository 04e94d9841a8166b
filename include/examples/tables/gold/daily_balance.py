"""What came and went on each day, and the balance at its end, right also after files that arrive late."""

from include.spec import Delta, Table, Upsert


def transform(transactions):
    from pyspark.sql import functions as F

    days = transactions.groupBy(F.col("date").alias("day")).agg(
        F.count("*").alias("transactions"), F.sum("amount").cast("decimal(18,2)").alias("change")
    )
    # One account: all its days in one order.
    return days.selectExpr("*", "CAST(sum(change) OVER (ORDER BY day) AS DECIMAL(18,2)) AS balance")


TABLE = Table(
    name="gold.daily_balance",
    comment="What came and went on each day, and the balance at its end",
    source=Delta("silver.transactions"),
    schema="""
        day DATE COMMENT 'a day with at least one transaction',
        transactions BIGINT COMMENT 'how many',
        change DECIMAL(18,2) COMMENT 'sum of the day',
        balance DECIMAL(18,2) COMMENT 'sum of all days up to this one'
    """,
    transform=transform,
    # A late file changes the balance of every later day.
    write=Upsert(keys=("day",)),
)
