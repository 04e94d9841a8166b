"""Every line of the bank's daily files, as it came."""

from include.spec import Files, Table

TABLE = Table(
    name="bronze.bank_transactions",
    comment="Every line of the bank's daily files, as it came",
    source=Files("bank-transactions", format="csv", pattern="*_transactions.csv"),
    schema="""
        date STRING COMMENT 'day of the transaction, yyyy-MM-dd',
        amount STRING COMMENT 'what came in, below zero what went out',
        description STRING COMMENT 'whom it came from or went to'
    """,
    interval_seconds=10,
)
