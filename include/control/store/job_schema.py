"""The tables of the control database for jobs of all kinds, and for the rows that they have to recompute."""

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, Table, text

# To create all tables, import `metadata` from here: this module has registered its own tables too.
from include.control.store.schema import metadata as metadata
from include.control.store.storable_text import String

_IS_ASKED, _HOLDS, _IS_UNFINISHED = text("driver IS NOT NULL"), text("stopped IS NOT NULL"), text("ended_at IS NULL")

jobs = Table(
    "job",
    metadata,
    Column("kind", String, primary_key=True, comment="control.store.job_id.JobKind, or what engine.jobs adds"),
    Column("number", Integer, primary_key=True, comment="among the jobs of its kind"),
    Column("root", Integer, nullable=False, comment="the job of its kind that made it necessary, or its own number"),
    Column("target", String, nullable=False, comment="the table"),
    Column("state", String, nullable=False, comment="planned, then one of its kind, at last done, failed or given up"),
    Column("who", String, nullable=False, comment="who asked for it"),
    Column("reason", String, nullable=False, comment="why, in words"),
    Column("message", String, nullable=False, comment="what it does now, or what it did, in words"),
    Column("failure", String, comment="the sentence its last try ended with; NULL while it runs and when it is done"),
    Column("stopped", String, comment="JSON: flows it has stopped, and what was wanted of each, and why"),
    Column("parameters", String, comment="JSON: what its kind was asked to do"),
    Column("outcome", String, comment="JSON: what its kind keeps of the result"),
    Column("epoch", BigInteger, comment="of the lease it holds; NULL: its lease is its own"),
    Column("planned_at", Float, nullable=False),
    Column("state_at", Float, nullable=False, comment="since when it is in this state"),
    Column("ended_at", Float, comment="NULL until it is over"),
    Column("driver", String, comment="which is asked to do it, with all jobs of this root; NULL: none"),
    Column("asked_at", Float, comment="when that driver was asked"),
    Column("tries", Integer, comment="how often it was begun by a driver that never said how it ended"),
    # Few of them among hundreds of thousands of windows, and looked for once a second.
    Index("unfinished_job", "kind", "root", sqlite_where=_IS_UNFINISHED, postgresql_where=_IS_UNFINISHED),
    Index("job_of_driver", "driver", sqlite_where=_IS_ASKED, postgresql_where=_IS_ASKED),
    Index("job_that_holds_flows", "kind", "number", sqlite_where=_HOLDS, postgresql_where=_HOLDS),
)

job_events = Table(
    "job_event",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("number", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("event", String, nullable=False, comment="a state that the job entered, or control.store.job_events.Event"),
    Column("who", String, comment="a person or a driver; NULL: the job itself"),
    Column("details", String, comment="in words"),
    Index("events_of_job", "kind", "number"),
)

stale = Table(
    "stale",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("target", String, nullable=False, comment="a table with rows that are not current"),
    Column("begins", String, comment="which range of it, in UTC; NULL: all of it, or nobody can tell"),
    Column("ends", String),
    Column("why", String, nullable=False, comment="in words, with the remedy where `follows` is NULL"),
    Column("since", Float, nullable=False),
    Column("follows", Integer, comment="the root of the backfill that recomputes it; NULL: a person has to"),
    Column("given_up", Boolean, comment="whether that backfill was given up"),
    Column("cause", String, server_default="source", comment="control.jobs.stale_rows.Cause"),
    Column("flow", String, comment="that wrote rows by an earlier definition than today's"),
    Column("generation", Integer),
    Column("batch", BigInteger, comment="the first of today's definition"),
    Column("definition", String, comment="SHA-256 of what determines rows by today's definition; NULL: an older build"),
    Column("without_time", Boolean, comment="only the rows that have no time, and so lie in no range"),
)
