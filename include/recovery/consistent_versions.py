"""Finds the newest versions, up to a moment, to which several tables can go back together.

A reader continues after what it has read. So at its version it must have read exactly up to its source's version.
The search lowers the versions that violate this until none does. Each step lowers a version as little as possible, so
the result is the newest consistent cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from include.errors import UsageError
from include.flows.timeline import Timeline
from include.spec import Delta, Table


@dataclass(frozen=True)
class LoweredVersion:
    """A table that must go back further, and why. version: None where no older version is left."""

    table: str
    version: int | None
    why: str


@dataclass
class ConsistentVersions:
    """The version of each table. why: the reasons, for tables that go back further than the moment."""

    versions: dict[str, int]
    why: dict[str, str]


def newest_consistent(
    moment: float, timelines: Mapping[str, Timeline], tables: Mapping[str, Table], together: Sequence[Mapping[str, int]]
) -> ConsistentVersions:
    """Returns the newest consistent cut at this moment, in seconds since 1970, or before it.

    tables: the tables of `timelines`, each after those that it reads.
    together: versions by table that are either all undone or all kept.
    Raises UsageError where there is no such cut.
    """
    cut = ConsistentVersions({}, {})
    for name, timeline in timelines.items():
        version = timeline.newest_at(moment)
        if version is None:
            raise _too_far(timeline, "it is asked for")
        cut.versions[name] = version
    while lowered := next(_violations(cut.versions, timelines, tables, together), None):
        if lowered.version is None:
            raise _too_far(timelines[lowered.table], lowered.why)
        cut.versions[lowered.table] = lowered.version
        cut.why[lowered.table] = lowered.why
    return cut


def _violations(
    versions: Mapping[str, int],
    timelines: Mapping[str, Timeline],
    tables: Mapping[str, Table],
    together: Sequence[Mapping[str, int]],
) -> Iterator[LoweredVersion]:
    """Yields the tables whose versions violate a rule."""
    for name, timeline in timelines.items():
        if (refresh_version := timeline.pending_refresh(versions[name])) is not None:
            yield LoweredVersion(
                name, timeline.before(refresh_version), "a full refresh had yet to say where its flows go on"
            )
    for table in tables.values():
        for flow in table.flows:
            if isinstance(flow.source, Delta) and flow.source.table in timelines:
                yield from _check_reader(flow, flow.source, versions, timelines)
    for group in together:
        for name, version in group.items():
            if versions[name] >= version and any(versions[other] < group[other] for other in group):
                why = f"a backfill that version {version} is part of is undone elsewhere"
                yield LoweredVersion(name, timelines[name].before(version), why)


def _check_reader(
    flow: Table, source: Delta, versions: Mapping[str, int], timelines: Mapping[str, Timeline]
) -> Iterator[LoweredVersion]:
    reader, source_timeline = timelines[flow.name], timelines[source.table]
    newest_batch = reader.stand(flow.flow, versions[flow.name])
    if newest_batch is None:
        # The flow starts over with a snapshot of its source.
        return
    content_read, content_kept = (
        source_timeline.read_to(newest_batch.stamp["source_to"], source),
        source_timeline.content(versions[source.table]),
    )
    if content_read is None or content_read > content_kept:
        how_far = "within a version" if content_read is None else "beyond that"
        why = f"its batch {newest_batch.batch[0]}/{newest_batch.batch[1]} had read {source.table} {how_far}"
        yield LoweredVersion(flow.name, reader.before(newest_batch.version), why)
    elif content_read < content_kept:
        lower = source_timeline.newest_of(content_read, versions[source.table])
        yield LoweredVersion(source.table, lower, f"{flow.flow} had read no more of it by then")


def _too_far(timeline: Timeline, why: str) -> UsageError:
    return UsageError(
        f"{timeline.table} cannot go back so far ({why}): its log begins with version {timeline.log.versions[0]}; "
        f"name a later moment, or make the rows again by a backfill"
    )
