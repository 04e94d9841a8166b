"""Finds every table file, checks the whole graph, and refuses a wrong one before anything runs."""

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise

from include import ddl
from include.errors import DeclarationError, UsageError
from include.spec import ACTIONS, BUCKET_UNITS, LAYERS, Append, Bucket, Delta, Expect, Json, Kafka, Table, Upsert


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
    for path in sorted(_files(files(package))):
        layer, _, name = path.removesuffix(".py").rpartition("/")
        if layer not in LAYERS:
            place = f"{package.replace('.', '/')}/{path}"
            raise DeclarationError(
                f"{place} lies in no layer, so it would be ignored: move it to one of {', '.join(LAYERS)}"
            )
        table = _import(package, layer, name)
        expected = f"{layer}.{name}"
        if table.name != expected:
            raise _mistake(table, f"name is '{table.name}', which is not its path: call it '{expected}'", expected)
        _check_kinds(table)
        _check_schema(table)
        found[expected] = table
    for table in found.values():
        _check_source(table, found)
        _check_write(table, found)
        _check_bronze(table)
        _check_rules(table)
    return Catalog({name: found[name] for name in _in_graph_order(found)})


def reload() -> Catalog:
    """The catalog as its files are now, also where they were changed since this process imported them."""
    load.cache_clear()
    for module in [name for name in sys.modules if name.startswith("include.tables.")]:
        del sys.modules[module]
    importlib.invalidate_caches()
    return load()


def _files(directory: Traversable, above: str = "") -> Iterator[str]:
    """Paths of all modules below, except those whose name begins with `_` or `.`.

    Not by Path.glob, which finds nothing inside the zip that cluster workers get.
    """
    for entry in directory.iterdir():
        if entry.name.startswith(("_", ".")):
            continue
        if entry.is_dir():
            yield from _files(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield above + entry.name


def _import(package: str, layer: str, name: str) -> Table:
    module_name, path = f"{package}.{layer}", f"{package}.{layer}".replace(".", "/")
    try:
        # First, so that what goes wrong there is not said of the table.
        place = f"{path}/__init__.py"
        importlib.import_module(module_name)
        place = f"{path}/{name}.py"
        module = importlib.import_module(f"{module_name}.{name}")
    except Exception as error:
        raise DeclarationError(
            f"{place} cannot be imported ({type(error).__name__}: {error}): mend that line; "
            f"pyspark is imported inside `transform` only"
        ) from error
    table = getattr(module, "TABLE", None)
    if not isinstance(table, Table):
        raise DeclarationError(f"{place} has no `TABLE = Table(...)`: add it, or move the file out of the tables")
    return table


def _check_kinds(table: Table) -> None:
    """Python takes any value for any field; what follows relies on their kinds."""
    _check_kind(table, "source", table.source, Kafka, Delta)
    _check_kind(table, "write", table.write, Append, Upsert)
    _check_kind(table, "schema", table.schema, str)
    _check_kind(table, "interval_seconds", table.interval_seconds, int, float)
    _check_list(table, "expect", table.expect, Expect)
    if table.parse is not None:
        _check_kind(table, "parse", table.parse, Json)
        _check_list(table, "into", table.parse.into, str)
    if not (table.transform is None or callable(table.transform)):
        raise _mistake(table, f"transform is {table.transform!r}: it has to be a function")
    if isinstance(table.write, Append):
        _check_list(table, "unique", table.write.unique, str)
        _check_list(table, "first_by", table.write.first_by, str)
    else:
        _check_list(table, "keys", table.write.keys, str)
        _check_kind(table, "recompute", table.write.recompute, Bucket)


def _check_kind(table: Table, what: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise _mistake(table, f"{what} is {value!r}: it has to be {wanted}")


def _check_list(table: Table, what: str, values: object, kind: type) -> None:
    if isinstance(values, kind):
        raise _mistake(table, f"{what} is {values!r} and no tuple: write {what}=(...,) with the comma")
    if not isinstance(values, (tuple, list)) or not all(isinstance(value, kind) for value in values):
        raise _mistake(table, f"{what} is {values!r}: it has to be a tuple of {kind.__name__}")


def _check_schema(table: Table) -> None:
    columns = ddl.columns(table.schema)
    if not any(columns):
        raise _mistake(table, "schema is empty: name its columns")
    if not all(columns):
        before = next((f"after '{name}'" for name, following in pairwise(columns) if not following), "at its beginning")
        raise _mistake(table, f"schema has a comma too many {before}: take it out")
    if table.parse:
        for name in table.parse.into:
            if name not in columns:
                raise _mistake(table, f"into names '{name}', no column of its schema: {_suggest(name, columns)}")
        if "_errors" not in columns:
            raise _mistake(
                table,
                "parse without a column for what cannot be typed: "
                "add `_errors ARRAY<STRUCT<field: STRING, message: STRING>>` to its schema",
            )


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
    columns = ddl.columns(table.schema)
    keys = (*table.write.unique, *table.write.first_by) if isinstance(table.write, Append) else table.write.keys
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
        options = ddl.columns(tables[table.source.table].schema)
        if bucket.of not in options:
            raise _mistake(table, f"bucket of '{bucket.of}', which its source has not: {_suggest(bucket.of, options)}")


def _check_bronze(table: Table) -> None:
    if not isinstance(table.source, Kafka):
        return
    if table.layer != "bronze":
        raise _mistake(
            table, "only bronze reads Kafka, so that what arrived is kept as it arrived: read a bronze table"
        )
    barred = "expect" if table.expect else "unique" if isinstance(table.write, Append) and table.write.unique else None
    if barred:
        raise _mistake(
            table, f"{barred} would drop messages, and bronze keeps each as it arrived: put it on the silver table"
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
    if not 0 < table.interval_seconds < math.inf:
        raise _mistake(table, f"interval_seconds is {table.interval_seconds}: set it to a number above 0")


def _in_graph_order(tables: dict[str, Table]) -> list[str]:
    reads = {t.name: [t.source.table] if isinstance(t.source, Delta) else [] for t in tables.values()}
    try:
        return list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        path = error.args[1]
        raise _mistake(tables[path[0]], f"reads itself in a cycle ({' <- '.join(path)}): cut one of these") from error


def _mistake(table: Table, sentence: str, path: str | None = None) -> DeclarationError:
    layer, name = (path or table.name).split(".")
    return DeclarationError(f"include/tables/{layer}/{name}.py: {sentence}")


def _suggest(wrong: str, options: list[str]) -> str:
    close = get_close_matches(wrong, options, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are {', '.join(options)}"
