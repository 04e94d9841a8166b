"""The newest versions, up to a moment, that several tables can go back to together.

A reader of a table goes on behind what it has read, so at its version it must have read its source to the end of the
source's version, no more and no less. Whatever breaks that is lowered until nothing does; as that only ever lowers a
version as far as it must, what is found is the newest such cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from include.errors import UsageError
from include.readers.timeline import Timeline
from include.spec import Delta, Table


@dataclass(frozen=True)
class Lowered:
    """A table has to go back further, and why. version: None where nothing so old is left."""

    table: str
    version: int | None
    why: str


@dataclass
class ConsistentVersions:
    """versions: by table. why: for those that go back further than the moment asks, what makes them."""

    versions: dict[str, int]
    why: dict[str, str]


def at(
    moment: float, lines: Mapping[str, Timeline], tables: Mapping[str, Table], together: Sequence[Mapping[str, int]]
) -> ConsistentVersions:
    """The newest cut at this moment, in seconds since 1970, or before it.

    tables: those of `lines`, each after the ones it reads. together: versions, by table, that are all undone or all
    kept. Raises UsageError where there is none.
    """
    cut = ConsistentVersions({}, {})
    for name, line in lines.items():
        version = line.newest_at(moment)
        if version is None:
            raise _too_far(line, "it is asked for")
        cut.versions[name] = version
    while lowered := next(_broken(cut.versions, lines, tables, together), None):
        if lowered.version is None:
            raise _too_far(lines[lowered.table], lowered.why)
        cut.versions[lowered.table] = lowered.version
        cut.why[lowered.table] = lowered.why
    return cut


def _broken(
    versions: Mapping[str, int],
    lines: Mapping[str, Timeline],
    tables: Mapping[str, Table],
    together: Sequence[Mapping[str, int]],
) -> Iterator[Lowered]:
    """What does not fit."""
    for name, line in lines.items():
        if (begun := line.unsettled(versions[name])) is not None:
            yield Lowered(name, line.before(begun), "a full refresh had yet to say where its flows go on")
    for table in tables.values():
        for flow in table.flows:
            if isinstance(flow.source, Delta) and flow.source.table in lines:
                yield from _between(flow, flow.source, versions, lines)
    for one in together:
        for name, version in one.items():
            if versions[name] >= version and any(versions[other] < one[other] for other in one):
                why = f"a backfill that version {version} is part of is undone elsewhere"
                yield Lowered(name, lines[name].before(version), why)


def _between(
    flow: Table, source: Delta, versions: Mapping[str, int], lines: Mapping[str, Timeline]
) -> Iterator[Lowered]:
    own, above = lines[flow.name], lines[source.table]
    stand = own.stand(flow.flow, versions[flow.name])
    if stand is None:
        # It begins anew, with all that its source holds then.
        return
    read, held = above.read_to(stand.stamp["source_to"], source), above.content(versions[source.table])
    if read is None or read > held:
        more = "within a version" if read is None else "beyond that"
        why = f"its batch {stand.batch[0]}/{stand.batch[1]} had read {source.table} {more}"
        yield Lowered(flow.name, own.before(stand.version), why)
    elif read < held:
        lower = above.newest_of(read, versions[source.table])
        yield Lowered(source.table, lower, f"{flow.flow} had read no more of it by then")


def _too_far(line: Timeline, why: str) -> UsageError:
    return UsageError(
        f"{line.table} cannot go back so far ({why}): its log begins with version {line.log.versions[0]}; name a later "
        f"moment, or make the rows again by a backfill"
    )
