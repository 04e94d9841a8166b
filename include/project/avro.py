"""Checks the registry and the Avro schemas of a table file, as far as that is possible without an Avro library."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from include.project.declaration import declaration_error, suggest
from include.spec import EVOLUTIONS, Avro, Json, Registry, Table


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


class RefersToItself(ValueError):
    """A type of a schema holds values of itself, so that no column has its type. The argument is its name."""


@dataclass(frozen=True)
class AvroType:
    """A type of a schema, with all names resolved. branches: of a union, without null. items: of an array or a map.
    fields: of a record, by name.
    """

    logical: str = ""
    branches: tuple["AvroType", ...] = ()
    element: "AvroType | None" = None
    fields: Mapping[str, "AvroType"] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> "AvroType":
        """Raises ValueError for a schema that is no record, and RefersToItself."""
        schema = json.loads(text)
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise ValueError("it is no record")
        return _resolved(schema, "", {})

    @property
    def is_union(self) -> bool:
        """Whether it is a union of several types besides null."""
        return len(self.branches) > 1

    @property
    def items(self) -> "AvroType":
        assert self.element is not None, "an array or a map"
        return self.element


def _resolved(schema: Any, namespace: str, named: dict[str, AvroType | None]) -> AvroType:
    """named: the types that have a name; None while the type is being read, so that nothing may refer to it."""
    if isinstance(schema, list):
        branches = tuple(_resolved(branch, namespace, named) for branch in schema if branch != "null")
        return branches[0] if len(branches) == 1 else AvroType(branches=branches)
    if isinstance(schema, str):
        name = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        name = name if name in named else schema
        if name not in named:
            return AvroType()
        if (found := named[name]) is None:
            raise RefersToItself(name)
        return found
    kind = schema["type"]
    if kind == "array" or kind == "map":
        return AvroType(element=_resolved(schema["items" if kind == "array" else "values"], namespace, named))
    if kind not in ("record", "error", "enum", "fixed"):
        logical = str(schema.get("logicalType", ""))
        return AvroType(logical) if isinstance(kind, str) and kind not in named else _resolved(kind, namespace, named)
    name, namespace = str(schema["name"]), str(schema.get("namespace") or namespace)
    if "." in name:
        namespace = name.rpartition(".")[0]
    elif namespace:
        name = f"{namespace}.{name}"
    named[name] = None
    fields = {part["name"]: _resolved(part["type"], namespace, named) for part in schema.get("fields", ())}
    resolved = named[name] = AvroType(str(schema.get("logicalType", "")), fields=fields)
    return resolved


def schemas_by_id(parse: Avro) -> list[tuple[int | None, str]]:
    """The schemas with their ids. The id is None for the schema of values without a header."""
    return [*parse.schemas.items()] if parse.schema is None else [(None, parse.schema)]


def fields(text: str) -> list[str]:
    """The field names of a record schema (JSON). Raises as `AvroType.of`."""
    return list(AvroType.of(text).fields)


def record_name(text: str) -> str:
    """The full name of a record schema (JSON)."""
    schema = json.loads(text)
    name, namespace = str(schema.get("name")), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _field_names(table: Table, text: str) -> list[str]:
    try:
        return fields(text)
    except RefersToItself as error:
        raise declaration_error(
            table,
            f"the record {error} of its Avro schema refers to itself, and no column has such a type: store the value "
            f"as it is, or let its producer write another schema",
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        excerpt = str(text)[:60]
        raise declaration_error(table, f"Avro schema {excerpt!r} is no schema of a record ({error}): fix it") from error
