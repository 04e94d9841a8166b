"""Which declared tables are right, which are wrong and why, and which cannot be judged as they read a wrong one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from include.errors import DeclarationError, SluiceError
from include.spec import Delta, References, Table
from include.validation import (
    avro_schema,
    declaration,
    delta_sources,
    expectations,
    field_types,
    files,
    import_errors,
    last_good,
    layout,
    schemas,
    slices,
    sources,
    table_files,
    views,
)
from include.validation.declaration import mistake
from include.validation.last_good import Definition
from include.validation.table_files import TableFile

Alone = Callable[[Table], None]
Among = Callable[[Table, dict[str, Table]], None]

# What is wrong with a table by itself. The first ones that refuse it spare it the others, which rely on them.
ALONE: tuple[tuple[Alone, ...], ...] = (
    (field_types.check,),
    (schemas.check,),
    (
        declaration.check_alone,
        declaration.check_times,
        views.check,
        layout.check,
        sources.check,
        avro_schema.check,
        delta_sources.check_alone,
        slices.check,
    ),
)
# What is wrong among the other tables.
AMONG: tuple[Among, ...] = (declaration.check_among, expectations.check, files.check, delta_sources.check_among)


@dataclass
class Examination:
    """broken: the sentences about each table that is wrong. unjudged: by table, the broken or unjudged one it reads.

    tables: the right ones, each after those it reads.
    """

    tables: dict[str, Table] = field(default_factory=dict)
    broken: dict[str, list[str]] = field(default_factory=dict)
    unjudged: dict[str, str] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        # What is wrong with a layer is said by each of its files.
        return list(dict.fromkeys(sentence for sentences in self.broken.values() for sentence in sentences))

    @contextmanager
    def noting(self, name: str, file: str) -> Iterator[None]:
        """Keep what is refused inside. A check that fails itself does so over a value that no check expects."""
        try:
            yield
        except DeclarationError as error:
            self.broken.setdefault(error.table or name, []).extend(error.sentences)
        except SluiceError:
            raise
        except Exception as error:
            if name not in self.broken:
                what = f"{type(error).__name__}: {error}"
                self.broken[name] = [f"{file}: no check understands its values ({what}): see docs/add-a-table.md"]


def examine(found: list[TableFile], substitutes: Mapping[str, Definition] | None = None) -> Examination:
    """Every file is looked at, whatever is wrong with the others.

    substitutes: by table, the definition that is examined instead of its file.
    """
    result, sound = Examination(), {}
    for file in found:
        with result.noting(file.table, file.place):
            substitute = (substitutes or {}).get(file.table)
            table = _substituted(file, substitute) if substitute else table_files.declared(file, found)
            _check_alone(table, result)
            if file.table not in result.broken:
                sound[file.table] = table
    names = {file.table for file in found}
    for table in sound.values():
        with result.noting(table.name, table.file):
            declaration.check_known(table, names)
    ordered = {name: sound[name] for name in _in_graph_order(sound, result)}
    _set_aside(ordered, result)
    for table in [table for name, table in ordered.items() if name not in {*result.broken, *result.unjudged}]:
        for among in AMONG:
            with result.noting(table.name, table.file):
                among(table, ordered)
    _set_aside(ordered, result)
    result.tables = {name: table for name, table in ordered.items() if name not in {*result.broken, *result.unjudged}}
    return result


def in_graph_order(tables: dict[str, Table]) -> list[str]:
    """Each after those it reads. Raises CycleError."""
    return list(TopologicalSorter({name: reads(table) for name, table in tables.items()}).static_order())


def reads(table: Table) -> list[str]:
    """The tables that it reads, and those that its rules look into."""
    source = [reader.source.table for reader in table.readers if isinstance(reader.source, Delta)]
    return source + [rule.table for rule in table.expect if isinstance(rule, References)]


def _substituted(file: TableFile, substitute: Definition) -> Table:
    try:
        return last_good.declared(file, substitute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # It imports something outside its package that is right no more.
        raise DeclarationError(import_errors.sentence(file.place, error), table=file.table) from error


def _check_alone(table: Table, result: Examination) -> None:
    for checks in ALONE:
        for check in checks:
            with result.noting(table.name, table.file):
                check(table)
        if table.name in result.broken:
            return


def _in_graph_order(sound: dict[str, Table], result: Examination) -> list[str]:
    """Without one of each cycle, which is broken."""
    tables = dict(sound)
    while True:
        try:
            return [name for name in in_graph_order(tables) if name in tables]
        except CycleError as error:
            path = error.args[1]
            refusal = mistake(tables.pop(path[0]), f"reads itself in a cycle ({' <- '.join(path)}): cut one of these")
            result.broken.setdefault(path[0], []).extend(refusal.sentences)


def _set_aside(ordered: dict[str, Table], result: Examination) -> None:
    for name, table in ordered.items():
        wrong = [one for one in reads(table) if one in result.broken or one in result.unjudged]
        if wrong and name not in result.broken:
            result.unjudged[name] = wrong[0]
