"""The schemas with which producers wrote values: those that a schema registry knows, and what it may not do.

A value begins with the header of Confluent's registry: byte 0, then the schema id in four bytes, big-endian.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType, StructType

from include.engine.files.formats.columns import fits
from include.engine.rows import json_schema
from include.errors import FlowBroken
from include.kafka import schema_registry as registry_client
from include.project.avro import RefersToItself, fields, record_name, schemas_by_id
from include.spec import Avro, Json, Registry, Table

HEADER_BYTES = 5
SHOWN_BYTES = 20


def schema_id(value: Column) -> Column:
    """Returns the id in the header; NULL if there is no header. Registries give no ids above 2^31 - 1."""
    registry_id = F.conv(F.hex(F.substring(value, 2, HEADER_BYTES - 1)), 16, 10).try_cast("int")
    is_header = F.substring(value, 1, 1) == F.lit(b"\0")
    return F.when(is_header & (F.octet_length(value) >= HEADER_BYTES), registry_id)


def payload(value: Column) -> Column:
    """Returns the bytes after the header."""
    return F.substring(value, HEADER_BYTES + 1, 2**31 - 1)


def sample(value: Column) -> Column:
    """Returns the first bytes as text."""
    return F.concat(F.lit("X'"), F.hex(F.substring(value, 1, SHOWN_BYTES)), F.lit("'"))


def problem(value: Column, known: Iterable[int], refused: Mapping[int, str], where: str) -> Column:
    """Returns why a value has no schema to read it with; NULL if it has one.

    known: the ids of schemas. refused: why some of them are not used. where: in which place others are missing.
    """
    id_of_value = schema_id(value)
    unknown = F.concat(F.lit("schema id "), id_of_value.cast("string"), F.lit(f" is not {where}"))
    message = F.when(id_of_value.isNull(), F.concat(sample(value), F.lit(" has no schema registry header")))
    message = message.when(~id_of_value.isin(list(known)), unknown)
    for refused_id, reason in refused.items():
        message = message.when(id_of_value == refused_id, f"schema id {refused_id} {reason}")
    return message


Registered = TypeVar("Registered", bound=Avro | Json)


@dataclass(frozen=True)
class WriterSchemas:
    """readable: texts by id; the id is None for values without a header. refused: why not, by id."""

    readable: list[tuple[int | None, str]]
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Record:
    """name: of the Avro record, or the title. types: of each field, in words and whether a column has its values."""

    name: str | None
    types: Mapping[str, tuple[str, Callable[[DataType], bool]]]


def with_schemas(parse: Registered, ids: Iterable[int]) -> Registered:
    """Returns `parse` with the schemas of these ids, as far as the registry knows them. Raises RegistryUnreachable."""
    unknown_ids = set(ids) - set(parse.schemas)
    if not unknown_ids:
        return parse
    name = "schemas" if isinstance(parse, Avro) else "registered"
    changed: dict[str, Any] = {name: {**registry_client.schemas(unknown_ids), **parse.schemas}}
    return replace(parse, **changed)


def with_schemas_of(rows: DataFrame, parse: Registered) -> Registered:
    """Returns `parse` with the schemas of rows that are no stream, whose ids a Spark job finds; unchanged without a
    registry.
    """
    return with_schemas(parse, _ids_of(rows, parse)) if parse.registry else parse


def _ids_of(rows: DataFrame, parse: Avro | Json) -> set[int]:
    ids = rows.select(schema_id(F.col(parse.column)).alias("id")).distinct().collect()
    return {row["id"] for row in ids if row["id"] is not None}


def divide(rows: DataFrame, table: Table, parse: Avro | Json, schema: StructType) -> WriterSchemas:
    """Divides the schemas of `parse` into those to read and those to refuse. schema: of the table.

    Raises FlowBroken if one has evolved and the table file says that this ends the flow.
    """
    if not parse.registry:
        assert isinstance(parse, Avro), "JSON without a registry has no schemas"
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
    rows: DataFrame, table: Table, parse: Avro | Json, registry: Registry, schema_id: int, schema: StructType
) -> str | None:
    text = parse.schemas[schema_id]
    try:
        record = _avro_record(rows, text) if isinstance(parse, Avro) else _json_record(text)
    except RefersToItself as error:
        return f"has the record {error}, which refers to itself, and no column has such a type"
    except (ValueError, TypeError, KeyError, PySparkException, Py4JJavaError):
        return f"is no {'Avro record that Spark' if isinstance(parse, Avro) else 'JSON Schema that Sluice'} can read"
    if registry.record not in (None, record.name):
        return f"is the record {record.name}, not {registry.record}"
    problem = None if registry.evolution == "follow" else _evolution(record, parse.into, schema)
    if problem and registry.evolution == "fail":
        raise FlowBroken(
            f"{table.name}: schema id {schema_id} {problem}, and its file says evolution='fail': declare the columns, "
            f"or let evolution be 'follow' or 'refuse'",
            "SCHEMA_EVOLVED",
        )
    return problem


def _avro_record(rows: DataFrame, text: str) -> _Record:
    fields(text)
    # The analysis finds what else Avro or Spark cannot read.
    record = rows.select(from_avro(F.lit(None).cast("binary"), text).alias("record")).schema["record"].dataType
    assert isinstance(record, StructType), "a record"
    types = {field.name: (field.dataType.simpleString().upper(), partial(fits, field.dataType)) for field in record}
    return _Record(record_name(text), types)


def _json_record(text: str) -> _Record:
    json_schema.validator(text)
    types = {
        name: (" or ".join(sorted(types)), partial(json_schema.fits, types))
        for name, types in json_schema.types_by_field(text).items()
    }
    return _Record(json_schema.title(text), types)


def _evolution(record: _Record, into: tuple[str, ...], schema: StructType) -> str | None:
    """Returns how a schema differs from the declared columns; None if it fits."""
    if new := next((name for name in record.types if name not in into), None):
        return f"has the field '{new}', which into does not name"
    if lost := next((name for name in into if name not in record.types), None):
        return f"lacks the field '{lost}'"
    for name in into:
        written, fits_into = record.types[name]
        if not fits_into(schema[name].dataType):
            return f"has '{name}' as {written}, which does not fit {schema[name].dataType.simpleString().upper()}"
    return None
