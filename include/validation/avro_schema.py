"""What a table file may say of Avro, as far as it can be known without an Avro library."""

import json

from include.spec import Avro, Table
from include.validation.declaration import mistake, suggest


def check(table: Table) -> None:
    """Raises DeclarationError for what is wrong with the schemas of a table that is right otherwise."""
    if not isinstance(table.parse, Avro):
        return
    if bool(table.parse.schemas) == (table.parse.schema is not None):
        both = "both schemas and a schema" if table.parse.schemas else "neither schemas nor a schema"
        raise mistake(table, f"Avro has {both}: name schemas by id where values have a header, else the one schema")
    for number in table.parse.schemas:
        if not 0 <= number < 2**31:
            raise mistake(table, f"schema id {number!r} is none that a registry gives: it is a whole number from 0 on")
    known = sorted({name for _, text in texts(table.parse) for name in _fields(table, text)})
    for name in table.parse.into:
        if name not in known:
            raise mistake(table, f"into names '{name}', which no schema of its Avro has: {suggest(name, known)}")


def texts(parse: Avro) -> list[tuple[int | None, str]]:
    """The schemas and their ids; None for the id of the one that values without a header have."""
    return [*parse.schemas.items()] if parse.schema is None else [(None, parse.schema)]


def fields(text: str) -> list[str]:
    """The names of the fields of a record. Raises ValueError where the schema is none of a record."""
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("it is no record")
    return [str(field["name"]) for field in schema["fields"]]


def _fields(table: Table, text: str) -> list[str]:
    try:
        return fields(text)
    except (ValueError, TypeError, KeyError) as error:
        shown = str(text)[:60]
        raise mistake(table, f"Avro schema {shown!r} is no schema of a record ({error}): mend it") from error
