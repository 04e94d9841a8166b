"""Refuses credentials in a table file: its text and its values are stored, printed and sent in many places."""

import re
from collections.abc import Mapping

from include.addresses import LOGIN
from include.spec import Files, Kafka, Registry, Table
from include.validation.declaration import declaration_error

# Where they belong.
PLACES = {
    Kafka.__name__: "put them into the properties file or the Airflow connection of a cluster, and write cluster='...'",
    Files.__name__: "put them into the AWS_* variables of the environment",
    Registry.__name__: "put them into the file that SLUICE_SCHEMA_REGISTRY_CREDENTIALS names",
    Table.__name__: "put them where docs/operations.md says",
}
NAME = re.compile("passw|jaas|secret|token|credential|access.?key", re.IGNORECASE)
KEYWORD = {Kafka.__name__: re.compile(f"option|config|servers|user|login|sasl|ssl|{NAME.pattern}", re.IGNORECASE)}
# As they stand in options of a client, in a login configuration, in the query of a URL, and before a host.
VALUE = re.compile(rf"{LOGIN.pattern}|(?:passw|secret|token|access.?key)\w*[\"']?\s*[=:]", re.IGNORECASE)
BROKER = re.compile(r"['\"][^'\"@]*:[^'\"@]*@")


def check(table: Table) -> None:
    """Raises DeclarationError, whose sentence does not contain the credentials. No other check has seen the table."""
    sources = table.source.values() if isinstance(table.source, Mapping) else (table.source,)
    for value in (*sources, getattr(table.parse, "registry", None)):
        kind, text = type(value).__name__, repr(value)
        if kind in PLACES and (VALUE.search(text) or (isinstance(value, Kafka) and BROKER.search(text))):
            raise declaration_error(table, f"{kind} has a password or key, and {_refusal(kind)}")
    for name in table.properties if isinstance(table.properties, Mapping) else ():
        if NAME.search(str(name)):
            raise declaration_error(table, f"properties has '{name}', and {_refusal(Table.__name__)}")


def explain_keyword(call: str, keyword: str) -> str | None:
    """Returns why `Kafka`, for example, has no such keyword; None for a keyword that passes no credentials."""
    if call in PLACES and KEYWORD.get(call, NAME).search(keyword):
        return f"{call} has no '{keyword}', and {_refusal(call)}"
    return None


def _refusal(kind: str) -> str:
    return f"a table file is no place for credentials: {PLACES[kind]}"
