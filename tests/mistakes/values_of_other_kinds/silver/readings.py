"""Many mistakes are told at once."""

from include.spec import Append, Delta, Expect, Maintenance, Table, Watermark

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta(["bronze.events"], max_files=True),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    driver=5,
    interval_seconds="10",
    expect=(Expect(7, "key IS NOT NULL"),),
    cluster_by=("offset", 3),
    maintain=Maintenance(every_batches=1.5),
    write=Append(unique=("key",), watermark=Watermark(of=5, minutes=float("nan"))),
)
