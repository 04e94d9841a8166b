"""One row per transaction of the bank account. Two alike are two: their place in their file tells them apart."""

from include.spec import Append, Cast, Delta, Expect, Table

TABLE = Table(
    name="silver.transactions",
    comment="One row per transaction of the bank account",
    source=Delta("bronze.bank_transactions"),
    parse=Cast(into=("date", "amount")),
    schema="""
        date DATE COMMENT 'day of the transaction',
        amount DECIMAL(10,2) COMMENT 'what came in, below zero what went out',
        description STRING COMMENT 'whom it came from or went to',
        _errors ARRAY<STRUCT<field: STRING, message: STRING>> COMMENT 'fields that could not be typed',
        _filename STRING COMMENT 'where it came from',
        _index BIGINT COMMENT 'its place in that file, from 0'
    """,
    time_column="date",
    write=Append(),
    expect=(Expect("dated", "date IS NOT NULL"), Expect("an amount", "amount IS NOT NULL")),
)
