"""The tables of the control database for jobs that recompute rows: backfills, full refreshes and rewinds."""

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, Table

# To create all tables, import `metadata` from here: this module has registered its own tables too.
from include.control.store.schema import metadata as metadata
from include.control.store.storable_text import String

backfills = Table(
    "backfill",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("root", Integer, nullable=False, comment="the backfill that made this one necessary, or its own number"),
    Column("target", String, nullable=False, comment="the table"),
    Column("begins", String, comment="its range, in UTC; NULL: as a whole"),
    Column("ends", String),
    Column("key", String, nullable=False, comment="by which its commits know it"),
    Column("who", String, nullable=False),
    Column("phase", String, nullable=False, comment="planned, computing, waiting, draining, replacing or done"),
    Column("said", String, nullable=False, comment="what it does now, or what it did, in words"),
    Column("failure", String, comment="the sentence its last try ended with; NULL while it runs and when it is done"),
    Column("readers", String, comment="JSON: flows it has stopped, and what was wanted of each, and why"),
    Column("version", BigInteger, comment="the version that replaced the range; NULL while there is none"),
    Column("rows_before", BigInteger),
    Column("rows_after", BigInteger),
    Column("planned_at", Float, nullable=False),
    Column("phase_at", Float, nullable=False, comment="since when it is in this phase"),
    Column("ended_at", Float, comment="NULL until it is done"),
)

approvals = Table(
    "approval",
    metadata,
    Column("job", String, primary_key=True, comment="what may be begun: a rewind, as `rewind 3`"),
    Column("who", String, nullable=False, comment="who approved it"),
    Column("at", Float, nullable=False),
)

requests = Table(
    "backfill_request",
    metadata,
    Column("root", Integer, primary_key=True, comment="the backfill that a driver is to do, with all below it"),
    Column("driver", String, nullable=False),
    Column("asked_at", Float, nullable=False),
    Column("tries", Integer, nullable=False, comment="how often it was begun by a driver that never said how it ended"),
)

stale = Table(
    "stale",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("target", String, nullable=False, comment="a table that was made of rows that were replaced"),
    Column("begins", String, comment="which range of it, in UTC; NULL: nobody can tell"),
    Column("ends", String),
    Column("why", String, nullable=False, comment="a sentence; with the way out where `follows` is NULL"),
    Column("since", Float, nullable=False),
    Column("follows", Integer, comment="the root of the backfill that recomputes it; NULL: a person has to"),
    Column("given_up", Boolean, comment="whether that backfill was given up"),
)

outdated = Table(
    "outdated",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("flow", String, nullable=False, comment="that wrote rows by an earlier definition than today's"),
    Column("target", String, nullable=False, comment="its table"),
    Column("generation", Integer, nullable=False),
    Column("batch", BigInteger, nullable=False, comment="the first of today's definition"),
    Column("begins", String, comment="which range of the table, in UTC; NULL: all of it"),
    Column("ends", String),
    Column("since", Float, nullable=False),
    Column("definition", String, comment="SHA-256 of what determines rows by today's definition; NULL: an older build"),
    Column("without_time", Boolean, comment="only the rows that have no time, and so lie in no range"),
)

rewinds = Table(
    "rewind",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("target", String, nullable=False, comment="the table that is restored, and with it all below"),
    Column("moment", String, nullable=False, comment="to which, in UTC"),
    Column(
        "cut", String, nullable=False, comment="JSON of control.jobs.rewinds.RestorePoint, by table, in graph order"
    ),
    Column("views", String, nullable=False, comment="JSON: the views that are refreshed, in graph order"),
    Column("key", String, nullable=False, comment="by which its commits know it"),
    Column("who", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("phase", String, nullable=False, comment="planned, then from stopping to refreshing, done or given up"),
    Column("said", String, nullable=False, comment="what it does now, or what it did, in words"),
    Column("failure", String, comment="the sentence its last try ended with; NULL while it runs and when it is done"),
    Column("stopped", String, comment="JSON: flows it has stopped, and what was wanted of each, and why"),
    Column("planned_at", Float, nullable=False),
    Column("phase_at", Float, nullable=False, comment="since when it is in this phase"),
    Column("ended_at", Float, comment="NULL until it is done, or given up"),
)
