"""Finds every table file, checks the whole graph, and refuses a wrong one before anything runs."""

import importlib
import pkgutil
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

from include.errors import DeclarationError, UsageError
from include.spec import ACTIONS, BUCKET_UNITS, LAYERS, Append, Delta, Kafka, Table, Upsert


@dataclass(frozen=True)
class Catalog:
    """All tables by name, each after the ones it reads. A table has one flow, which bears its name."""

    tables: dict[str, Table]

    def flow(self, name: str) -> Table:
        """Raises UsageError for a flow nobody declared."""
        if name not in self.tables:
            raise UsageError(f"there is no flow '{name}': {_suggest(name, list(self.tables))}")
        return self.tables[name]

    def drivers(self) -> dict[str, list[Table]]:
        """The flows that share a Spark process, by driver name, in graph order."""
        shared: dict[str, list[Table]] = {}
        for table in self.tables.values():
            shared.setdefault(table.driver, []).append(table)
        return shared


@lru_cache
def load(package: str = "include.tables") -> Catalog:
    """Every `<package>.<layer>.<name>`, checked. Raises DeclarationError, one sentence that names the file."""
    found = {}
    for layer in LAYERS:
        for name in _modules(f"{package}.{layer}"):
            table = _import(f"{package}.{layer}.{name}")
            expected = f"{layer}.{name}"
            if table.name != expected:
                raise _mistake(table, f"name is '{table.name}', which is not its path: call it '{expected}'", expected)
            found[expected] = table
    for table in found.values():
        _check_source(table, found)
        _check_write(table, found)
        _check_rules(table)
    return Catalog({name: found[name] for name in _in_graph_order(found)})


def _modules(package: str) -> list[str]:
    try:
        layer = importlib.import_module(package)
    except ModuleNotFoundError:
        return []
    # pkgutil and not Path.glob, which finds nothing inside the zip that cluster workers get.
    return sorted(module.name for module in pkgutil.iter_modules(layer.__path__))


def _import(module_name: str) -> Table:
    path = f"{module_name.replace('.', '/')}.py"
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise DeclarationError(
            f"{path} cannot be imported ({type(error).__name__}: {error}): mend that line; "
            f"pyspark is imported inside `transform` only"
        ) from error
    table = getattr(module, "TABLE", None)
    if not isinstance(table, Table):
        raise DeclarationError(f"{path} has no `TABLE = Table(...)`: add it, or move the file out of the tables")
    return table


def _check_source(table: Table, tables: dict[str, Table]) -> None:
    if not isinstance(table.source, Delta):
        return
    source = table.source.table
    if source not in tables:
        raise _mistake(table, f"source is '{source}', which no file declares: {_suggest(source, list(tables))}")
    if isinstance(tables[source].write, Upsert):
        raise _mistake(
            table,
            f"source '{source}' is upserted, and a stream of appends would stop at the first changed row: "
            f"read a table that is appended to",
        )


def _check_write(table: Table, tables: dict[str, Table]) -> None:
    columns = _columns(table)
    keys = table.write.unique + table.write.first_by if isinstance(table.write, Append) else table.write.keys
    for key in keys:
        if key not in columns:
            raise _mistake(table, f"key '{key}' is not a column of its schema: {_suggest(key, columns)}")
    if isinstance(table.write, Upsert):
        bucket = table.write.recompute
        if not keys:
            raise _mistake(table, "Upsert has no keys: name the columns that identify a row")
        if bucket.unit not in BUCKET_UNITS:
            raise _mistake(table, f"bucket unit is '{bucket.unit}': {_suggest(bucket.unit, list(BUCKET_UNITS))}")
        if bucket.name not in keys:
            raise _mistake(table, f"bucket '{bucket.name}' is not one of its keys: add it to {keys}")
        if not isinstance(table.source, Delta):
            raise _mistake(table, "an aggregate is recomputed from a Delta table, and its source is none: read one")
        if bucket.of not in _columns(tables[table.source.table]):
            options = _columns(tables[table.source.table])
            raise _mistake(table, f"bucket of '{bucket.of}', which its source has not: {_suggest(bucket.of, options)}")
    if isinstance(table.source, Kafka) and table.layer != "bronze":
        raise _mistake(
            table, "only bronze reads Kafka, so that what arrived is kept as it arrived: read a bronze table"
        )


def _check_rules(table: Table) -> None:
    names = [rule.name for rule in table.expect]
    for rule in table.expect:
        if rule.otherwise not in ACTIONS:
            raise _mistake(
                table,
                f"rule '{rule.name}' says otherwise='{rule.otherwise}': {_suggest(rule.otherwise, list(ACTIONS))}",
            )
        if names.count(rule.name) > 1:
            raise _mistake(table, f"two rules are called '{rule.name}': give each a name of its own")
    if table.expect and isinstance(table.write, Upsert):
        raise _mistake(table, "expectations stand on a recomputed aggregate: put them on the table it reads")
    if table.interval_seconds <= 0:
        raise _mistake(table, f"interval_seconds is {table.interval_seconds}: set it above 0")


def _in_graph_order(tables: dict[str, Table]) -> list[str]:
    reads = {t.name: [t.source.table] if isinstance(t.source, Delta) else [] for t in tables.values()}
    try:
        return list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        path = error.args[1]
        raise _mistake(tables[path[0]], f"reads itself in a cycle ({' <- '.join(path)}): cut one of these") from error


def _columns(table: Table) -> list[str]:
    """Column names of a DDL schema; commas inside brackets and quotes do not separate columns."""
    columns, depth, quoted, start = [], 0, False, 0
    for position, character in enumerate(table.schema + ","):
        quoted ^= character == "'"
        if quoted:
            continue
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            columns.append(table.schema[start:position].split()[0].strip("`"))
            start = position + 1
    return columns


def _mistake(table: Table, sentence: str, path: str | None = None) -> DeclarationError:
    layer, name = (path or table.name).split(".")
    return DeclarationError(f"include/tables/{layer}/{name}.py: {sentence}")


def _suggest(wrong: str, options: list[str]) -> str:
    close = get_close_matches(wrong, options, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are {', '.join(options)}"
