"""Runs all checks that need no Spark: finds the right tables, the wrong ones, and those that read a wrong one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from include.errors import DeclarationError, SluiceError
from include.project import (
    avro,
    columns,
    declaration,
    last_good,
    lookups,
    personal,
    ranges,
    sources,
    table_files,
    values,
    writes,
)
from include.project.declaration import declaration_error
from include.project.last_good import Definition
from include.project.table_files import TableFile
from include.spec import References, Table

TableCheck = Callable[[Table], None]
GraphCheck = Callable[[Table, dict[str, Table]], None]

# Checks of a single table, in groups. Later groups rely on earlier ones, and run only if these find no mistake.
TABLE_CHECKS: tuple[tuple[TableCheck, ...], ...] = (
    (values.check_credentials,),
    (values.check_types,),
    (columns.check_schema,),
    (
        declaration.check_alone,
        declaration.check_times,
        writes.check_view,
        columns.check_layout,
        personal.check,
        personal.check_pseudonyms,
        sources.check_sources,
        avro.check,
        sources.check_delta_sources,
        lookups.check_alone,
        writes.check_changes,
        ranges.check_ranges,
    ),
)
# Checks of a table in relation to other tables.
GRAPH_CHECKS: tuple[GraphCheck, ...] = (
    declaration.check_among,
    columns.check_rules,
    sources.check_files,
    sources.check_delta_graph,
    lookups.check_among,
)


@dataclass
class Examination:
    """The result of the checks.

    tables: the right tables, in graph order.
    broken: for each wrong table, a sentence for each mistake.
    unchecked: for each table that reads a broken or unchecked table, the name of that table.
    """

    tables: dict[str, Table] = field(default_factory=dict)
    broken: dict[str, list[str]] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        # Each file of a layer repeats a mistake of that layer.
        return list(dict.fromkeys(sentence for sentences in self.broken.values() for sentence in sentences))

    @contextmanager
    def collect_mistakes(self, name: str, file: str) -> Iterator[None]:
        """Collect the mistakes that the block raises. Any other exception of a check means an unexpected value."""
        try:
            yield
        except DeclarationError as error:
            self.broken.setdefault(error.table or name, []).extend(error.sentences)
        except SluiceError:
            raise
        except Exception as error:
            if name not in self.broken:
                cause = f"{type(error).__name__}: {error}"
                self.broken[name] = [
                    f"{file}: no check understands its values ({cause}): see docs/guides/declare-a-table.md"
                ]


def examine(all_files: list[TableFile], substitutes: Mapping[str, Definition] | None = None) -> Examination:
    """Check all files. A mistake in one file does not stop the checks of the others.

    substitutes: by table, the definition to check instead of its file. Without one, a draft declares no table.
    """
    result, checked = Examination(), {}
    substitutes, drafts = substitutes or {}, table_files.drafts(all_files)
    live_files = [file for file in all_files if not file.is_draft]
    files = [*live_files, *(file for name, file in drafts.items() if name in substitutes)]
    for file in files:
        with result.collect_mistakes(file.table, file.place):
            substitute = substitutes.get(file.table)
            table = _load_substitute(file, substitute) if substitute else table_files.import_table(file, live_files)
            _check_alone(table, result)
            if file.table not in result.broken:
                checked[file.table] = table
    names = {file.table for file in files}
    for table in checked.values():
        with result.collect_mistakes(table.name, table.file):
            declaration.check_known(table, names, drafts.keys() - names)
    ordered = {name: checked[name] for name in _order_without_cycles(checked, result)}
    for name, table in ordered.items():
        # Checked after the tables that it reads, and only if all of them are right.
        if unusable := [source for source in reads(table) if source in result.broken or source in result.unchecked]:
            result.unchecked[name] = unusable[0]
        elif name not in result.broken:
            for check in GRAPH_CHECKS:
                with result.collect_mistakes(name, table.file):
                    check(table, ordered)
    result.unchecked = {name: source for name, source in result.unchecked.items() if name not in result.broken}
    result.tables = {name: table for name, table in ordered.items() if name not in {*result.broken, *result.unchecked}}
    return result


def in_graph_order(tables: dict[str, Table]) -> list[str]:
    """The names in graph order: each follows the tables that it reads. Raises CycleError."""
    return list(TopologicalSorter({name: reads(table) for name, table in tables.items()}).static_order())


def reads(table: Table, are_pinned: bool = True) -> list[str]:
    """The names of the tables that its sources, lookups and rules read.

    are_pinned: also those that it reads at one version, whatever is committed later.
    """
    names = [source.table for source in table.upstream if are_pinned or not source.is_pinned]
    names += [lookup.table for lookup in table.lookups]
    return names + [rule.table for rule in table.expect if isinstance(rule, References)]


def _load_substitute(file: TableFile, substitute: Definition) -> Table:
    try:
        return last_good.import_table(file, substitute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A module outside the package, which the definition imports, may be wrong now.
        raise DeclarationError(table_files.sentence(file.place, error), table=file.table) from error


def _check_alone(table: Table, result: Examination) -> None:
    for checks in TABLE_CHECKS:
        for check in checks:
            with result.collect_mistakes(table.name, table.file):
                check(table)
        if table.name in result.broken:
            return


def _order_without_cycles(checked: dict[str, Table], result: Examination) -> list[str]:
    """The names in graph order. One table of each cycle is left out, and reported as broken."""
    tables = dict(checked)
    while True:
        try:
            return [name for name in in_graph_order(tables) if name in tables]
        except CycleError as error:
            path = error.args[1]
            refusal = declaration_error(
                tables.pop(path[0]), f"reads itself in a cycle ({' <- '.join(path)}): cut one of these"
            )
            result.broken.setdefault(path[0], []).extend(refusal.sentences)
