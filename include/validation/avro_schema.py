"""Checks the registry and the Avro schemas of a table file, as far as that is possible without an Avro library."""

import json

from include.spec import EVOLUTIONS, Avro, Json, Registry, Table
from include.validation.declaration import declaration_error, suggest


def check(table: Table) -> None:
    """Raises DeclarationError for a wrong Avro schema or registry. The table has passed all earlier checks."""
    if isinstance(table.parse, Avro | Json) and table.parse.registry:
        _check_registry(table, table.parse, table.parse.registry)
    if not isinstance(table.parse, Avro):
        return
    if not table.parse.registry and bool(table.parse.schemas) == (table.parse.schema is not None):
        mistaken = "both schemas and a schema" if table.parse.schemas else "neither schemas nor a schema"
        raise declaration_error(
            table,
            f"Avro has {mistaken}: name schemas by id or registry=Registry() where values have a header, else the one "
            f"schema",
        )
    for schema_id in table.parse.schemas:
        if not 0 <= schema_id < 2**31:
            raise declaration_error(
                table, f"schema id {schema_id!r} is none that a registry gives: it is a whole number from 0 on"
            )
    if table.parse.registry:
        # Any field may be one of a schema that only the registry knows.
        return
    field_names = sorted({name for _, text in schemas_by_id(table.parse) for name in _field_names(table, text)})
    for name in table.parse.into:
        if name not in field_names:
            raise declaration_error(
                table, f"into names '{name}', which no schema of its Avro has: {suggest(name, field_names)}"
            )


def _check_registry(table: Table, parse: Avro | Json, registry: Registry) -> None:
    if isinstance(parse, Avro) and parse.schema is not None:
        raise declaration_error(
            table, "Avro has a registry, and a schema for values without a header: take one of them out"
        )
    if registry.evolution not in EVOLUTIONS:
        raise declaration_error(
            table, f"evolution is '{registry.evolution}': {suggest(registry.evolution, list(EVOLUTIONS))}"
        )
    if table.is_recomputed or table.temporary:
        raise declaration_error(
            table,
            f"{type(parse).__name__} with a registry in an aggregate or a temporary step: type the rows in a table "
            f"that appends them or merges changes, and read that",
        )


def schemas_by_id(parse: Avro) -> list[tuple[int | None, str]]:
    """The schemas with their ids. The id is None for the schema of values without a header."""
    return [*parse.schemas.items()] if parse.schema is None else [(None, parse.schema)]


def fields(text: str) -> list[str]:
    """The field names of a record schema (JSON). Raises ValueError for a schema of another type."""
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("it is no record")
    return [str(field["name"]) for field in schema["fields"]]


def record_name(text: str) -> str:
    """The full name of a record schema (JSON)."""
    schema = json.loads(text)
    name, namespace = str(schema.get("name")), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _field_names(table: Table, text: str) -> list[str]:
    try:
        return fields(text)
    except (ValueError, TypeError, KeyError) as error:
        excerpt = str(text)[:60]
        raise declaration_error(
            table, f"Avro schema {excerpt!r} is no schema of a record ({error}): mend it"
        ) from error
