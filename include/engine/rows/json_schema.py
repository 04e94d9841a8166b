"""Validates JSON by the JSON Schemas that a registry knows. Spark's Python processes import this module, too."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
from jsonschema_rs import Draft7Validator, ValidationError, validator_for
from pyspark.sql.types import DataType

SHOWN_CHARACTERS = 200
ERROR = pa.struct([("field", pa.string()), ("message", pa.string())])
# Spark's types of columns, by the JSON type of a value that fits them. A string takes any value.
NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")
COLUMN_TYPES = {
    "integer": NUMBERS,
    "number": ("float", "double", "decimal"),
    "boolean": ("boolean",),
    "string": ("binary", "date", "timestamp", "decimal"),
}


@lru_cache(maxsize=1_000)
def validator(text: str) -> Any:
    """Returns the validator of a schema, by its `$schema` or draft 7, as Confluent's serializers write.

    Raises ValueError for text that is no JSON Schema of an object, or that refers to other documents.
    """
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("a schema of any value")
    return (validator_for if "$schema" in schema else Draft7Validator)(schema, offline=True)


def errors_by_schema(schemas: Mapping[int, str], column: str) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """Returns the function of an `arrow_udf`: of schema ids and documents, it makes the first error of each or NULL.

    column: the field of an error that concerns the whole document.
    """

    def errors(ids: pa.Array, documents: pa.Array) -> pa.Array:
        pairs = zip(ids.to_pylist(), documents.to_pylist(), strict=True)
        return pa.array([_error(schemas, schema_id, document, column) for schema_id, document in pairs], ERROR)

    return errors


def _error(schemas: Mapping[int, str], schema_id: int | None, document: str | None, column: str) -> Any:
    if schema_id is None or schema_id not in schemas or document is None:
        return None
    try:
        found = next(validator(schemas[schema_id]).iter_errors(json.loads(document)), None)
    except (ValueError, RecursionError) as error:
        # No JSON, or nested too deeply.
        return {"field": column, "message": f"cannot be checked by schema id {schema_id} ({type(error).__name__})"}
    if found is None:
        return None
    return {"field": _field(found) or column, "message": f"{found.message[:SHOWN_CHARACTERS]} (schema id {schema_id})"}


def _field(error: ValidationError) -> str:
    path = [str(part) for part in error.instance_path]
    # Of a property that is required and missing.
    missing = getattr(error.kind, "property", None)
    return ".".join([*path, missing] if missing else path)


def title(text: str) -> str | None:
    found: str | None = json.loads(text).get("title")
    return found


def types_by_field(text: str) -> dict[str, set[str]]:
    """Returns the JSON types of each property of an object, without null; an empty set stands for any type."""
    root = json.loads(text)
    properties: dict[str, Any] = {}
    for part in _parts(root, root, ("allOf",)):
        properties |= part.get("properties", {})
    return {name: _types(schema, root) for name, schema in properties.items()}


def _types(schema: Any, root: dict[str, Any]) -> set[str]:
    types: set[str] = set()
    for part in _parts(schema, root, ("allOf", "anyOf", "oneOf")):
        declared = part.get("type", [])
        types.update([declared] if isinstance(declared, str) else declared)
    return types - {"null"}


def _parts(
    schema: Any, root: dict[str, Any], combined: tuple[str, ...], seen: set[int] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields a schema, what it refers to in its document, and the alternatives that it combines, each once."""
    seen = set() if seen is None else seen
    if not isinstance(schema, dict) or id(schema) in seen:
        return
    seen.add(id(schema))
    yield schema
    inner = [part for keyword in combined for part in schema.get(keyword, ())]
    reference = schema.get("$ref", "")
    if reference.startswith("#/"):
        target: Any = root
        for key in reference[2:].split("/"):
            target = target.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        inner.append(target)
    for part in inner:
        yield from _parts(part, root, combined, seen)


def fits(types: set[str], column_type: DataType) -> bool:
    """Whether a column of this type has the values of these JSON types."""
    name = column_type.typeName()
    return name == "string" or all(name in COLUMN_TYPES.get(type_, ()) for type_ in types)
