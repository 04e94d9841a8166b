"""Determines what the fast path must know of a table to write its files, and which tables it refuses."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

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
REFUSED_PROPERTIES = {
    "delta.columnMapping.mode": "none",
    "delta.enableChangeDataFeed": "false",
    "delta.enableDeletionVectors": "false",
    "delta.enableInCommitTimestamps": "false",
    "delta.enableRowTracking": "false",
    "delta.isolationLevel": "WriteSerializable",
    "delta.parquet.compression.codec": "zstd",
    "delta.randomizeFilePrefixes": "false",
}
CONSTRAINT = "delta.constraints."
INDEXED_COLUMNS, INDEXED_COUNT = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
MOST_INDEXED = 32
# Column metadata that does not change the written values.
HARMLESS_METADATA = {"comment", "CURRENT_DEFAULT", "EXISTS_DEFAULT"}
LEGACY_WRITER = 6


class NotSupported(Exception):
    """The fast path cannot write the table or the batch. Nothing was written."""


@dataclass(frozen=True)
class Layout:
    """schema: of the data files. indexed: columns that get statistics, with dots if nested; None means the
    first ones.
    """

    schema: pa.Schema
    indexed: tuple[str, ...] | None
    most_indexed: int
    is_append_only: bool


def layout(metadata: dict[str, Any], protocol: dict[str, Any]) -> Layout:
    """Returns the layout of a table with these actions in its log. Raises NotSupported."""
    properties = metadata.get("configuration") or {}
    features = {*protocol.get("readerFeatures", []), *protocol.get("writerFeatures", [])}
    if unknown_features := sorted(features - KNOWN_FEATURES):
        raise NotSupported(f"its table has the feature {unknown_features[0]}")
    if "writerFeatures" not in protocol and protocol["minWriterVersion"] > LEGACY_WRITER:
        raise NotSupported(f"its table asks for writers of version {protocol['minWriterVersion']}")
    if metadata.get("partitionColumns"):
        raise NotSupported("its table is partitioned")
    for name, required in REFUSED_PROPERTIES.items():
        if properties.get(name, required).lower() != required.lower():
            raise NotSupported(f"its table has {name} = {properties[name]}")
    if constraint := next((name for name in properties if name.startswith(CONSTRAINT)), None):
        raise NotSupported(f"its table has the constraint {constraint.removeprefix(CONSTRAINT)}")
    columns = properties.get(INDEXED_COLUMNS)
    return Layout(
        schema=_schema(metadata["schemaString"]),
        indexed=None if columns is None else tuple(name.strip().strip("`") for name in columns.split(",")),
        most_indexed=int(properties.get(INDEXED_COUNT, MOST_INDEXED)),
        is_append_only=properties.get("delta.appendOnly", "false").lower() == "true",
    )


def _schema(text: str) -> pa.Schema:
    schema = StructType.fromJson(json.loads(text))
    for field in schema:
        if not field.nullable:
            raise NotSupported(f"its column {field.name} is NOT NULL")
        if unknown_metadata := sorted(field.metadata.keys() - HARMLESS_METADATA):
            raise NotSupported(f"its column {field.name} has the property {unknown_metadata[0]}")
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise NotSupported(f"Arrow does not know one of its types: {error}") from error
