"""The schemas with which producers wrote Avro values: those that a schema registry knows, and what it may not do."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from include.engine.batch import schema_registry
from include.engine.files.schema_evolution import fits
from include.errors import FlowBroken
from include.readers import schema_registry as registry_client
from include.spec import Avro, Registry, Table
from include.validation.avro_schema import fields, record_name, schemas_by_id


@dataclass(frozen=True)
class WriterSchemas:
    """readable: texts by id; the id is None for values without a header. refused: why not, by id."""

    readable: list[tuple[int | None, str]]
    refused: dict[int, str] = field(default_factory=dict)


def with_schemas(parse: Avro, ids: Iterable[int]) -> Avro:
    """Returns `parse` with the schemas of these ids, as far as the registry knows them. Raises RegistryUnreachable."""
    unknown_ids = set(ids) - set(parse.schemas)
    return replace(parse, schemas={**registry_client.schemas(unknown_ids), **parse.schemas}) if unknown_ids else parse


def ids_of(rows: DataFrame, parse: Avro) -> set[int]:
    """Returns the schema ids of rows that are no stream, in a Spark job."""
    ids = rows.select(schema_registry.schema_id(F.col(parse.column)).alias("id")).distinct().collect()
    return {row["id"] for row in ids if row["id"] is not None}


def divide(rows: DataFrame, table: Table, parse: Avro, schema: StructType) -> WriterSchemas:
    """Divides the schemas of `parse` into those to read and those to refuse. schema: of the table.

    Raises FlowBroken if one has evolved and the table file says that this ends the flow.
    """
    if not parse.registry:
        return WriterSchemas(schemas_by_id(parse))
    schemas = WriterSchemas([])
    for schema_id, text in parse.schemas.items():
        problem = _problem(rows, table, parse, parse.registry, schema_id, schema)
        if problem:
            schemas.refused[schema_id] = problem
        else:
            schemas.readable.append((schema_id, text))
    return schemas


def _problem(
    rows: DataFrame, table: Table, parse: Avro, registry: Registry, schema_id: int, schema: StructType
) -> str | None:
    text = parse.schemas[schema_id]
    try:
        # The analysis finds what Avro or Spark cannot read, such as a type that refers to itself.
        record = rows.select(from_avro(F.lit(None).cast("binary"), text).alias("record")).schema["record"].dataType
        fields(text)
    except (ValueError, TypeError, KeyError, PySparkException, Py4JJavaError):
        return "is no Avro record that Spark can read"
    if registry.record not in (None, record_name(text)):
        return f"is the record {record_name(text)}, not {registry.record}"
    assert isinstance(record, StructType), "a record"
    problem = None if registry.evolution == "follow" else _evolution(record, parse.into, schema)
    if problem and registry.evolution == "fail":
        raise FlowBroken(
            f"{table.flow}: schema id {schema_id} {problem}, and its file says evolution='fail': declare the columns, "
            f"or let evolution be 'follow' or 'refuse'",
            "SCHEMA_EVOLVED",
        )
    return problem


def _evolution(record: StructType, into: tuple[str, ...], schema: StructType) -> str | None:
    """Returns how a schema differs from the declared columns; None if it fits."""
    names = record.fieldNames()
    if new := next((name for name in names if name not in into), None):
        return f"has the field '{new}', which into does not name"
    if lost := next((name for name in into if name not in names), None):
        return f"lacks the field '{lost}'"
    for name in into:
        written, declared = record[name].dataType, schema[name].dataType
        if not fits(written, declared):
            return (
                f"has '{name}' as {written.simpleString().upper()}, which does not fit "
                f"{declared.simpleString().upper()}"
            )
    return None
