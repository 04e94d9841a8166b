"""How a table's data files are laid out, and why the fast path cannot write it, by the actions of its log."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from include.engine.rows.micro_batch import Refusal

# Table features that do not concern a commit, or only if a property or column uses them.
KNOWN_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "clustering",
    "columnMapping",
    "domainMetadata",
    "generatedColumns",
    "identityColumns",
    "invariants",
}
# Values that these properties must have: others change the format of files, or need more from a commit.
CHANGE_FEED = "delta.enableChangeDataFeed"
REFUSED_PROPERTIES = {
    "delta.columnMapping.mode": "none",
    CHANGE_FEED: "false",
    "delta.enableDeletionVectors": "false",
    "delta.enableInCommitTimestamps": "false",
    "delta.enableRowTracking": "false",
    "delta.isolationLevel": "WriteSerializable",
    "delta.parquet.compression.codec": "zstd",
    "delta.randomizeFilePrefixes": "false",
}
# What concerns only who changes rows, or is up to Delta's own transaction.
OF_CHANGES = {CHANGE_FEED, "delta.enableInCommitTimestamps", "delta.isolationLevel", "delta.parquet.compression.codec"}
FEATURES_OF_CHANGES = {"inCommitTimestamp"}
CONSTRAINT = "delta.constraints."
INDEXED_COLUMNS, INDEXED_COUNT = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
MOST_INDEXED = 32
# Column metadata that does not change the written values.
HARMLESS_METADATA = {"comment", "CURRENT_DEFAULT", "EXISTS_DEFAULT"}
LEGACY_WRITER = 6


class NotSupported(Exception):
    """What is read of a batch shows that the fast path cannot write it. Nothing was committed.

    Only what reads or writes rows part by part raises it. All that is known before is a `Refusal`, which is returned.
    """


@dataclass(frozen=True)
class Layout:
    """schema: of the data files, without partition columns. indexed: columns that get statistics, with dots if nested;
    None means the first ones. partitions: the columns by which the table is partitioned.
    """

    schema: pa.Schema
    indexed: tuple[str, ...] | None
    most_indexed: int
    is_append_only: bool
    partitions: tuple[str, ...] = ()


def layout(metadata: dict[str, Any], protocol: dict[str, Any], moves_rows: bool = False) -> Layout | Refusal:
    """Returns the layout of a table with these actions in its log, or why the fast path cannot write it. moves_rows:
    commits only move rows from file to file. These have their generated values, keep to the constraints and stay in
    their partitions, and a change feed needs nothing of them.
    """
    properties = dict(metadata.get("configuration") or {})
    schema = StructType.fromJson(json.loads(metadata["schemaString"]))
    reason = _unknown_format(properties, protocol, moves_rows)
    if not (reason or moves_rows):
        reason = _needs_of_new_rows(metadata, properties) or _unknown_column(schema)
    if reason:
        return Refusal(reason)
    partitions = tuple(metadata.get("partitionColumns") or ())
    try:
        in_files = StructType([field for field in schema if field.name not in partitions])
        arrow_schema = to_arrow_schema(in_files, timezone="UTC")
    except PySparkException as error:
        return Refusal(f"Arrow does not know one of its types: {error}")
    columns = properties.get(INDEXED_COLUMNS)
    return Layout(
        schema=arrow_schema,
        indexed=None if columns is None else tuple(name.strip().strip("`") for name in columns.split(",")),
        most_indexed=int(properties.get(INDEXED_COUNT, MOST_INDEXED)),
        is_append_only=properties.get("delta.appendOnly", "false").lower() == "true",
        partitions=partitions,
    )


def _unknown_format(properties: dict[str, str], protocol: dict[str, Any], moves_rows: bool) -> str | None:
    """Returns what of the table's format the fast path does not write, if anything."""
    features = {*protocol.get("readerFeatures", []), *protocol.get("writerFeatures", [])}
    known_features = KNOWN_FEATURES | FEATURES_OF_CHANGES if moves_rows else KNOWN_FEATURES
    if unknown_features := sorted(features - known_features):
        return f"its table has the feature {unknown_features[0]}"
    if "writerFeatures" not in protocol and protocol["minWriterVersion"] > LEGACY_WRITER:
        return f"its table asks for writers of version {protocol['minWriterVersion']}"
    for name, required in REFUSED_PROPERTIES.items():
        is_free = moves_rows and name in OF_CHANGES
        if not is_free and properties.get(name, required).lower() != required.lower():
            return f"its table has {name} = {properties[name]}"
    return None


def _needs_of_new_rows(metadata: dict[str, Any], properties: dict[str, str]) -> str | None:
    """Returns what the table asks of rows that it did not hold before, and the fast path does not give it, if
    anything.
    """
    if metadata.get("partitionColumns"):
        return "its table is partitioned"
    constraint = next((name for name in properties if name.startswith(CONSTRAINT)), None)
    return constraint and f"its table has the constraint {constraint.removeprefix(CONSTRAINT)}"


def _unknown_column(schema: StructType) -> str | None:
    for field in schema:
        if not field.nullable:
            return f"its column {field.name} is NOT NULL"
        if unknown_metadata := sorted(field.metadata.keys() - HARMLESS_METADATA):
            return f"its column {field.name} has the property {unknown_metadata[0]}"
    return None
