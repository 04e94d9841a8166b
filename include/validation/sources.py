"""Checks the sources of a table, and writes the sentence for each mistake."""

import re
from collections.abc import Mapping
from itertools import combinations

from include.spec import Append, Delta, Files, Kafka, Table, ddl
from include.validation.declaration import declaration_error

# The branch is part of the flow name and of its checkpoint directory.
BRANCH = re.compile("[a-z][a-z0-9_]*|")
TOPIC = re.compile("[a-zA-Z0-9._-]+")
# A part of the names of its variable and of its Airflow connection.
CLUSTER = re.compile("[a-z][a-z0-9_]*")


def check(table: Table) -> None:
    """Raises DeclarationError for a wrong source. The table has passed all earlier checks."""
    if isinstance(table.source, Mapping) and not table.is_view:
        _check_branches(table, list(table.source))
    for flow in table.flows:
        if isinstance(flow.source, Kafka):
            _check_kafka(flow, flow.source)
    _check_overlap(table)
    _check_clusters(table)


def _check_branches(table: Table, names: list[str]) -> None:
    if not names:
        raise declaration_error(table, "source has no branch: name at least one, or give it one source")
    if not isinstance(table.write, Append):
        raise declaration_error(
            table,
            "Upsert has several sources, and the rows of one would overwrite those of another: append the branches to "
            "a table of their own, and upsert from that",
        )
    for name in names:
        if not BRANCH.fullmatch(name):
            raise declaration_error(table, f"branch {name!r} is no plain word: use small letters, digits and _")
    if any(isinstance(flow.source, Files) for flow in table.flows):
        raise declaration_error(
            table,
            "Files stands beside other sources, and its columns come and go with its files: let it fill a table of "
            "its own, and read that",
        )


def _check_kafka(flow: Table, source: Kafka) -> None:
    if bool(source.names) == (source.pattern is not None):
        mistaken = "both topics and a pattern" if source.names else "neither topics nor a pattern"
        raise declaration_error(flow, f"Kafka has {mistaken}: give it one of them")
    for name in source.names:
        if not TOPIC.fullmatch(name):
            raise declaration_error(
                flow, f"topic {name!r} has a name that Kafka does not allow: use letters, digits, . _ and -"
            )
        if source.names.count(name) > 1:
            raise declaration_error(flow, f"topic '{name}' is named twice: take one of them out")
    if source.pattern is not None:
        _check_pattern(flow, source.pattern)
    if source.cluster is not None and not CLUSTER.fullmatch(source.cluster):
        raise declaration_error(flow, f"cluster {source.cluster!r} is no plain word: use small letters, digits and _")
    is_raw = not (flow.parse or flow.transform)
    if source.schema_ids and is_raw and "schema_id" not in ddl.columns(flow.schema):
        raise declaration_error(flow, "schema_ids without a column for them: write schema=KAFKA_SCHEMA_WITH_IDS")


def _check_pattern(flow: Table, pattern: str) -> None:
    if "&&" in pattern:
        # In Java, `&&` is the intersection of two character classes.
        raise declaration_error(
            flow, f"pattern is {pattern!r}, in which Java and Python read && in two ways: write it without"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise declaration_error(
            flow, f"pattern is {pattern!r}, which is no regular expression ({error}): mend it"
        ) from error


def _check_overlap(table: Table) -> None:
    flow_by_origin: dict[str, str] = {}
    for flow in table.flows:
        for origin in _origins(flow.source):
            first_flow = flow_by_origin.setdefault(origin, flow.flow)
            if first_flow != flow.flow:
                raise declaration_error(
                    table,
                    f"flows '{first_flow}' and '{flow.flow}' both read {origin}, so its rows would come twice: "
                    f"take one of them out",
                )


def _check_clusters(table: Table) -> None:
    """A row names its topic and not its cluster, so that topics of the same name would be one."""
    sources = [flow.source for flow in table.flows if isinstance(flow.source, Kafka)]
    for source, other in combinations(sources, 2):
        may_match = source.pattern is not None or other.pattern is not None
        if source.cluster != other.cluster and (may_match or set(source.names) & set(other.names)):
            raise declaration_error(
                table,
                f"{source} and {other} may share a topic name, and a row does not name its cluster: give each cluster "
                f"a table of its own, and let a silver table read both",
            )


def _origins(source: object) -> list[str]:
    if isinstance(source, Kafka):
        cluster = f" of cluster '{source.cluster}'" if source.cluster else ""
        return [f"topic '{name}'{cluster}" for name in source.names]
    return [f"table '{source.table}'"] if isinstance(source, Delta) else []
