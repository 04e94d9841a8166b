"""Gives stored tables a name in the catalog that other engines ask: an entry with location, columns and comments.

A table gets its entry within a minute of its first batch. From then on, its log is looked at every `LOOK_SECONDS`, and
opened only if it has moved. An entry that somebody else made, or another platform, is never touched. No entry is
deleted.
"""

import importlib
import json
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deltalake.exceptions import DeltaError

from include.catalog import Catalog
from include.control import platform
from include.control.store import database
from include.delta import stored_table
from include.errors import UsageError
from include.lake import clients, locations
from include.settings import settings
from include.spec import LAYERS, Table

LOOK_SECONDS = 600
COLUMNS_FILE = "registered_columns.json"


class State(StrEnum):
    REGISTERED = "registered"
    NOT_REGISTERED = "not registered yet"
    NOT_STORED = "waits for its first batch"
    DIFFERS = "differs"
    REFUSED = "refused"
    NOT_DECLARED = "no longer registered from here"


@dataclass(frozen=True)
class Registration:
    """name: in the catalog. reason: what differs, or why it is refused. done: what this call did."""

    name: str
    state: State
    reason: str = ""
    done: str = ""


def register(tables: Catalog) -> dict[str, Registration]:
    """Creates and corrects the entries of the tables of `settings().catalog_layers`. Returns what became of each table.

    Raises UsageError without a catalog, a region or credentials, and Unreachable where the catalog, the control
    database or the store of the lake does not answer.
    """
    return _Run(tables, time.time() - LOOK_SECONDS).register()


def survey(tables: Catalog) -> dict[str, Registration]:
    """Compares all entries with the tables as they are now, and changes nothing. Raises the errors of `register`."""
    return _Run(tables, time.time()).survey()


class _Run:
    """One comparison. looked_after: columns that were looked at earlier, in seconds since 1970, are looked at again."""

    def __init__(self, tables: Catalog, looked_after: float) -> None:
        if settings().catalog_prefix is None:
            raise UsageError("SLUICE_CATALOG is not set, so no table is registered anywhere: set it to glue")
        self._tables = tables
        # Its client takes long to import.
        self._glue: Any = importlib.import_module("include.monitoring.glue")
        self._client = self._glue.Glue()
        self._platform = platform.identity(database.connect(settings().control_url))
        self._stored = {layer: self._client.tables(_database(layer)) for layer in LAYERS}
        self._columns = _Columns(looked_after)

    def survey(self) -> dict[str, Registration]:
        found = {table.name: self._compare(table) for table in self._wanted()}
        self._columns.save(set(found))
        return found | self._not_declared()

    def register(self) -> dict[str, Registration]:
        found = {}
        for table in self._wanted():
            found[table.name] = self._compare(table)
            if found[table.name].state in (State.NOT_REGISTERED, State.DIFFERS):
                found[table.name] = self._write(table, found[table.name])
        self._columns.save(set(found))
        return found | self._not_declared()

    def _wanted(self) -> list[Table]:
        return [table for table in self._tables.tables.values() if table.layer in settings().catalog_layers]

    def _compare(self, table: Table) -> Registration:
        name, stored = _name(table.name), self._entry_of(table.name)
        if stored and (refusal := self._refusal(table.name, stored)):
            return Registration(name, State.REFUSED, refusal)
        try:
            columns = self._columns.of(table.name)
        except (DeltaError, OSError) as error:
            return Registration(name, State.REFUSED, f"its log cannot be read: {error}")
        if columns is None:
            return Registration(name, State.NOT_STORED)
        if not stored:
            return Registration(name, State.NOT_REGISTERED)
        differences = self._glue.differences(stored, self._new_entry(table))
        return Registration(name, State.DIFFERS if differences else State.REGISTERED, ", ".join(differences))

    def _write(self, table: Table, found: Registration) -> Registration:
        database_name, entry, stored = _database(table.layer), self._new_entry(table), self._entry_of(table.name)
        try:
            if stored:
                self._client.update(database_name, self._glue.kept(stored, entry))
                return Registration(found.name, State.REGISTERED, done=f"corrected ({found.reason})")
            self._client.create(database_name, entry)
        except self._glue.EntryRefused as error:
            return Registration(found.name, State.REFUSED, str(error))
        self._stored[table.layer][entry["Name"]] = entry
        return Registration(found.name, State.REGISTERED, done="created")

    def _refusal(self, table: str, stored: dict[str, Any]) -> str | None:
        """Returns why an entry of the wanted name is left alone, and what to do."""
        there, here = self._glue.location_of(stored), _location(table)
        mark = (stored.get("Parameters") or {}).get(self._glue.OWNER_MARK)
        if mark == self._platform and there == here:
            return None
        if mark == self._platform:
            return (
                f"{_name(table)} is registered at {there}, and the table lies at {here}: drop it in the catalog, and "
                f"it is registered at its place"
            )
        by = f"registered by the platform {mark}" if mark else "not registered by Sluice"
        return (
            f"{_name(table)} is in the catalog already, {by}, and lies at {there or 'no place'}: drop it there, or set "
            f"a prefix in SLUICE_CATALOG"
        )

    def _not_declared(self) -> dict[str, Registration]:
        """Returns the entries of this platform whose table is not to be registered: a file may be broken for now."""
        known = {table.name for table in self._wanted()} | {*self._tables.invalid, *self._tables.drafts}
        return {
            f"{layer}.{name}": Registration(
                _name(f"{layer}.{name}"), State.NOT_DECLARED, "drop it in the catalog, unless somebody reads it"
            )
            for layer, entries in self._stored.items()
            for name, entry in entries.items()
            if f"{layer}.{name}" not in known | self._tables.unusable.keys()
            and (entry.get("Parameters") or {}).get(self._glue.OWNER_MARK) == self._platform
        }

    def _entry_of(self, table: str) -> dict[str, Any] | None:
        layer, _, name = table.partition(".")
        stored: dict[str, Any] | None = self._stored[layer].get(name)
        return stored

    def _new_entry(self, table: Table) -> dict[str, Any]:
        columns = self._columns.known[table.name]["columns"]
        entry: dict[str, Any] = self._glue.entry(table, _location(table.name), columns, self._platform)
        return entry


class _Columns:
    """The columns of stored tables as they were last looked at, kept below the home.

    known: by table the version, its columns as in the schema of Delta's JSON, and `at`, when it was the newest one, in
    seconds since 1970. Without the file, all logs are opened once.
    """

    def __init__(self, looked_after: float) -> None:
        self._file = settings().home / COLUMNS_FILE
        self._looked_after = looked_after
        self.known: dict[str, dict[str, Any]] = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._is_changed = False

    def of(self, table: str) -> list[dict[str, Any]] | None:
        """Returns the columns of a table; None where it has no commit yet."""
        known = self.known.get(table)
        if known and known["at"] > self._looked_after:
            return list(known["columns"])
        if not known or not _is_newest(table, known["version"]):
            if not locations.is_stored(table):
                return None
            opened = stored_table.open_table(table)
            known = {"version": opened.version(), "columns": json.loads(opened.schema().to_json())["fields"]}
        self.known[table] = known | {"at": time.time()}
        self._is_changed = True
        return list(known["columns"])

    def save(self, tables: set[str]) -> None:
        """Writes what this run has looked at. tables: all others are forgotten."""
        if self._is_changed:
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps({table: known for table, known in self.known.items() if table in tables}))
            new.rename(self._file)


def _is_newest(table: str, version: int) -> bool:
    """Returns whether a version is there and the next one is not: two requests, and no list of the log."""
    log = locations.table_path(table) / "_delta_log"
    return (log / f"{version:020}.json").exists() and not (log / f"{version + 1:020}.json").exists()


def _database(layer: str) -> str:
    return f"{settings().catalog_prefix}{layer}"


def _name(table: str) -> str:
    """Returns the name of a table in the catalog."""
    return f"{settings().catalog_prefix}{table}"


def _location(table: str) -> str:
    uri, options = clients.delta_rs(locations.table_path(table))
    return uri if options else f"file://{uri}"
