"""The tables of the control database: leases, orders, observations, requests and the audit."""

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, Table, text

from include.control.store.storable_text import String

metadata = MetaData()
_IS_OPEN = text("ended_at IS NULL")

versions = Table(
    "schema_version",
    metadata,
    Column("version", Integer, nullable=False, comment="one row: see include.control.store.migrations"),
)

leases = Table(
    "lease",
    metadata,
    Column("flow", String, primary_key=True),
    Column("epoch", BigInteger, nullable=False, comment="fencing token: one more at every acquisition, never less"),
    Column("holder", String, nullable=False, comment="JSON of include.control.leases.process.Holder"),
    Column("expires_at", Float, nullable=False, comment="seconds since 1970, by the database's clock; 0: released"),
    Column("writes", String, index=True, comment="the table its holder writes now, or waits for; NULL: none"),
    Column("mode", String, comment="how: shared, conditional, alone, or wants (to be alone)"),
    Column("wanted_at", Float, comment="since when it wants to be alone, or has been"),
)

pauses = Table(
    "pause",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("flow", String, nullable=False),
    Column("target", String, nullable=False, comment="the table"),
    Column("epoch", BigInteger, nullable=False, comment="of the lease that made it wait"),
    Column("began_at", Float, nullable=False, comment="when the flow came to the gate with a batch"),
    Column("ended_at", Float, nullable=False, comment="when it was let through"),
)

paces = Table(
    "pace",
    metadata,
    Column("flow", String, primary_key=True),
    Column("interval_seconds", Float, nullable=False, comment="from one batch to the next while rows come, as of late"),
)

desired = Table(
    "desired",
    metadata,
    Column("flow", String, primary_key=True),
    Column("state", String, nullable=False, comment="running, draining or stopped; without a row it is running"),
    Column("reason", String, nullable=False),
)

ticks = Table(
    "tick",
    metadata,
    Column("flow", String, primary_key=True, comment="it rests between the times of its schedule, not by a person"),
    Column("at", Float, nullable=False, comment="when its schedule was last followed"),
)

runs = Table(
    "run",
    metadata,
    Column("flow", String, primary_key=True),
    Column("turn", Integer, nullable=False, comment="one more whenever somebody asks for a restart"),
    Column("intended_at", Float, comment="when the flow was last meant to start, by whomever; NULL: never"),
    Column("attempts", Integer, nullable=False, comment="starts since the flow was last healthy"),
    Column("failure", String, comment="the sentence its last run ended with; NULL while it runs or may be started"),
    Column("error", String, comment="the error class of that failure"),
    Column("needs_person", Boolean, nullable=False, comment="whether no retry cures that failure"),
    Column("sign_at", Float, comment="when its query last showed a sign of life"),
)

drivers = Table(
    "driver",
    metadata,
    Column("driver", String, primary_key=True),
    Column("ends_epoch", BigInteger, nullable=False, comment="holders of its lease up to this epoch are to end"),
    Column("ends_at", Float, comment="when that was asked for"),
    Column("intended_at", Float, comment="when the supervisor last decided to start it; NULL: never"),
    Column("epoch", BigInteger, nullable=False, comment="of its lease at that time; a greater one is its own"),
    Column("handle", String, comment="by which its launcher knows it; NULL until it was launched"),
    Column("log", String, comment="where its output is, in words; NULL: an older build launched it"),
)

placements = Table(
    "placement",
    metadata,
    Column("flow", String, primary_key=True),
    Column("driver", String, nullable=False, comment="which runs it, instead of the one that its table declares"),
)

driver_sizes = Table(
    "driver_size",
    metadata,
    Column("driver", String, primary_key=True, comment="whose executors are declared"),
    Column("size", Integer, nullable=False, comment="the executors that it is to have"),
    Column("running", Integer, comment="the executors that it had as of late; NULL: it has not said so yet"),
    Column("cores", Integer, comment="of each of its executors"),
)

scale_decisions = Table(
    "scale_decision",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("driver", String, nullable=False),
    Column("size", Integer, nullable=False, comment="executors from then on"),
    Column("size_before", Integer, nullable=False),
    Column("reason", String, nullable=False, comment="include.control.flows.scale.Reason"),
    Column("need", Float, nullable=False, comment="in executors, not rounded"),
    Column("has_backlog", Boolean, nullable=False),
    Column("is_known", Boolean, nullable=False, comment="whether every flow was known"),
    Column("is_news", Boolean, nullable=False, comment="whether size or reason differ from those of the one before"),
    Column("inputs", String, nullable=False, comment="JSON of include.control.flows.scale.Observed"),
)

resets = Table(
    "reset",
    metadata,
    Column("flow", String, primary_key=True),
    Column("accepts_loss", Boolean, nullable=False, comment="whether to skip what the topic no longer holds"),
    Column("who", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("approver", String, comment="NULL: none was needed"),
)

readers = Table(
    "reader",
    metadata,
    Column("name", String, primary_key=True),
    Column("target", String, primary_key=True, comment="the table it reads"),
    Column("version", BigInteger, nullable=False, comment="it needs this version and every later one"),
    Column("since", Float, nullable=False),
    Column("ends_at", Float, nullable=False, comment="until when it counts"),
)

releases = Table(
    "release",
    metadata,
    Column("flow", String, primary_key=True, comment="VACUUM no longer waits for it; it has to be rebuilt"),
    Column("at", Float, nullable=False),
    Column("who", String, nullable=False),
    Column("reason", String, nullable=False),
)

losses = Table(
    "loss",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("flow", String, nullable=False),
    Column("generation", Integer, nullable=False, comment="the generation that begins after the loss"),
    Column("topic", String, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("first", BigInteger, nullable=False, comment="first lost offset"),
    Column("after", BigInteger, comment="the offset after the last lost one; NULL: unknown, the topic is gone"),
    Column("accepted_at", Float, nullable=False),
    Column("who", String, nullable=False),
    Column("reason", String, nullable=False),
)

skips = Table(
    "skip",
    metadata,
    Column("flow", String, primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("batch", BigInteger, primary_key=True, comment="the flow leaves it out, and goes on behind it"),
    Column("reads", String, nullable=False, comment="what the batch reads of its source, in words"),
    Column("approved_at", Float, nullable=False),
    Column("who", String, nullable=False),
    Column("reason", String, nullable=False),
)

backlogs = Table(
    "backlog",
    metadata,
    Column("flow", String, primary_key=True),
    Column("at", Float, primary_key=True),
    Column("behind", BigInteger, nullable=False, comment="unread records of a topic, or unread versions of a table"),
)

snapshots = Table(
    "snapshot",
    metadata,
    Column("part", String, primary_key=True, comment="platform: all but the details of tables; else a table's name"),
    Column("at", Float, nullable=False, comment="when the supervisor looked"),
    Column("document", String, nullable=False, comment="JSON of include.monitoring.snapshot"),
)

samples = Table(
    "sample",
    metadata,
    Column("flow", String, primary_key=True),
    Column("at", Float, primary_key=True, comment="about one a minute"),
    Column("state", String, comment="include.control.flows.decide.State; NULL: unknown"),
    Column("starts", BigInteger, comment="how often the flow was started, ever: the epoch of its lease"),
    Column("behind", BigInteger, comment="unread records of a topic, files of a folder, or versions of a table"),
    Column("lag_seconds", Float, comment="age of the oldest unread data"),
    Column("rows_in_per_second", Float, comment="of the batches of the last minute; NULL: none has ended"),
    Column("rows_out_per_second", Float),
    Column("batch_ms", BigInteger, comment="of the newest batch of the last minute; NULL: none has ended"),
    Column("latest_offset_ms", BigInteger, comment="a part of that, as the following"),
    Column("get_batch_ms", BigInteger),
    Column("query_planning_ms", BigInteger),
    Column("wal_commit_ms", BigInteger),
    Column("add_batch_ms", BigInteger),
    Column("commit_offsets_ms", BigInteger),
    Column("cpu_ms", BigInteger, comment="its part of its driver's CPU time since the sample before; NULL: unknown"),
    Column("bytes_written", BigInteger, comment="by its commits since the sample before; NULL: unknown"),
    Column("definition", String, comment="begins the SHA-256 of the definition it runs by; NULL: unknown"),
    # The rows of a flow lie together, in the order of a chart.
    sqlite_with_rowid=False,
)

incidents = Table(
    "incident",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("target", String, nullable=False, comment="unique among the open ones: the subject, or a part of it"),
    Column("subject", String, comment="a flow, a table, or a part of the platform; NULL: by an older build"),
    Column("state", String, nullable=False, comment="control.alarms.AlarmKind"),
    Column("reason", String, nullable=False),
    Column("error", String, nullable=False, comment="the error class of what is BROKEN, else empty"),
    Column("began_at", Float, nullable=False),
    Column("told_at", Float, comment="when somebody was notified"),
    Column("ended_at", Float, comment="NULL while it lasts"),
    Column("cause", String, comment="which incidents share, such as `driver main`; NULL: its own"),
    Column("over_told_at", Float, comment="when somebody was notified of its end"),
    Column("retried_at", Float, comment="when a person had its flow started again; NULL: nobody has"),
    Index("one_open_incident", "target", unique=True, sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
)

acknowledgements = Table(
    "acknowledgement",
    metadata,
    Column("incident", Integer, primary_key=True, comment="the alarm that a person has taken on"),
    Column("who", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("ends_at", Float, nullable=False, comment="until when it makes no noise"),
)

audits = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("who", String, nullable=False),
    Column("action", String, nullable=False),
    Column("target", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("result", String, nullable=False),
    Column("has_effect", Boolean, comment="whether it changed anything; NULL: an older build, and it may have"),
    Column("approver", String, comment="NULL: none was needed, or nobody approved it"),
    Column("chain", String, comment="include.control.store.audit_chain.Chain"),
    Column("previous_hash", String, comment="of the row before it in its chain; empty: it is the first"),
    Column("hash", String, comment="SHA-256 of previous_hash and of all columns but number; NULL: an older build"),
    Index("audit_of_chain", "chain", "number"),
)

pulses = Table(
    "pulse",
    metadata,
    Column("name", String, primary_key=True),
    Column("at", Float, nullable=False, comment="when it was last at work"),
)

shutdowns = Table(
    "shutdown",
    metadata,
    Column("began_at", Float, primary_key=True, comment="when `make down` was about to stop everything"),
    Column("drivers", String, nullable=False, comment="JSON: the drivers that lived then, and were stopped on purpose"),
    Column("ended_at", Float, comment="when the platform was started again; NULL while it is down"),
)

platforms = Table(
    "platform",
    metadata,
    Column("id", String, primary_key=True, comment="tells this platform from others at the same broker; one row"),
)

first_loads = Table(
    "first_load",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("flow", String, nullable=False, comment="whose first batch waits"),
    Column("awaits", String, nullable=False, comment="the flow that has to read its source first"),
    Column("life", String, nullable=False, comment="id of the waiting flow's table, and generation of its checkpoint"),
    Column("source_end", String, comment="JSON: up to where the awaited flow has to read; NULL until that is known"),
    Column("asked_at", Float, nullable=False),
    Column("read_at", Float, comment="when it was found that the awaited flow has read that"),
)

accepted_differences = Table(
    "accepted_difference",
    metadata,
    Column("target", String, primary_key=True, comment="the table that was verified"),
    Column("key", String, primary_key=True, comment="of the difference, as `verify` shows it"),
    Column("who", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("at", Float, nullable=False),
)

suppressions = Table(
    "suppression",
    metadata,
    Column("mac", String, primary_key=True, comment="keyed hash of an erased subject"),
    Column("key_id", String, nullable=False, comment="names the key, which lies in the home"),
    Column("job", Integer, nullable=False, comment="number of the erasure"),
    Column("at", Float, nullable=False),
)

announcements = Table(
    "announcement",
    metadata,
    Column("table_name", String, primary_key=True),
    Column("version", Integer, nullable=False, comment="of the table, in the newest event of its Airflow asset"),
    Column("at", Float, nullable=False, comment="when Airflow had taken that event"),
)
