"""Scans all objects of the lake and the home for values, and tells what kind of place each hit lies in."""

import os
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, MetaData, select

from include.catalog import Catalog
from include.control.store import database
from include.erasure.needles import Needles
from include.erasure.objects import Unreadable, parts
from include.lake import directories, locations, paths
from include.lake.paths import LakePath
from include.settings import settings
from include.spec import Via

# Folders of the home that hold what nobody writes about subjects: programs, and the key and requests of erasures.
PROGRAMS = ("bin", "cache", "jars", "venv", "erasure")
# What other systems own: the log of the embedded broker and its connector, the landing folder, the example database,
# and the local store of objects.
OF_OTHERS = ("kafka", "connect", "landing", "shop", "store")
# How long an object that nobody can read is read again, as somebody may be writing it, and how often.
UNREADABLE_SECONDS, RETRY_SECONDS = 2.0, 1.0


@dataclass
class Scan:
    """hits: by place, how often it holds a value. unread: by place, why nobody can say what it holds. A place is a
    path from the home or the lake on, or a table of the control database.
    """

    objects: int = 0
    bytes: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not self.hits and not self.unread

    def add(self, place: str, file: LakePath, hits: int, why_unread: str | None) -> None:
        """Adds what a file holds, unless it is gone."""
        if why_unread:
            self.unread[place] = why_unread
            return
        with suppress(FileNotFoundError):
            size = file.stat().st_size
            self.objects, self.bytes = self.objects + 1, self.bytes + size
            if hits:
                self.hits[place] += hits

    def lines(self) -> list[str]:
        return [
            *(f"{place}: {count:,} times" for place, count in sorted(self.hits.items())),
            *(f"{place}: not read, {why}" for place, why in sorted(self.unread.items())),
        ]


def roots() -> dict[str, LakePath]:
    """By name, the directories that are scanned."""
    config = settings()
    found: dict[str, LakePath] = {"home": config.home}
    for name, location in (("lake", config.lake), ("checkpoints", config.all_checkpoints)):
        if not any(_is_inside(location, root) for root in found.values()):
            found[name] = paths.parse(location)
    return found


def _is_inside(location: object, root: LakePath) -> bool:
    return str(location).startswith(f"{root}/")


def excluded() -> list[Path]:
    """What of the roots is not scanned."""
    config = settings()
    return [*(config.home / name for name in (*PROGRAMS, *OF_OTHERS)), Path(config.landing), config.jars]


def number_columns(tables: Catalog) -> frozenset[str]:
    """The columns that name subjects, or rows of them in other tables. Numbers in these are compared."""
    subjects = [table.subject for table in tables.tables.values() if table.subject]
    named = {subject for subject in subjects if isinstance(subject, str) and subject.isidentifier()}
    return frozenset(named.union(*(subject.columns for subject in subjects if isinstance(subject, Via))))


def scan(needles: Needles, tables: Catalog, engine: Engine | None = None, wait_seconds: float = 0.0) -> Scan:
    """Scans the roots, and the control database where it is not a file of the home. Raises Unreachable.

    wait_seconds: how long temporary files of running processes may hold a value.
    """
    found = Scan()
    places = ((f"{name}/{path}", root / path) for name, root in roots().items() for path in files(root))
    _look_into_files(places, needles, number_columns(tables), found, wait_seconds)
    if engine is not None and not engine.url.drivername.startswith("sqlite"):
        _look_into_database(engine, needles, found)
    return found


def files(root: LakePath) -> Iterator[str]:
    """Yields all files below a root that are scanned, in order, by their paths from there on."""
    if not isinstance(root, Path):
        yield from (file.path for file in directories.files(root))
        return
    skipped = {path.resolve() for path in excluded()}
    for directory, names, children in os.walk(root):
        here = Path(directory)
        names[:] = sorted(name for name in names if (here / name).resolve() not in skipped)
        for child in sorted(children):
            if not (here / child).is_symlink() and (here / child).is_file():
                yield str((here / child).relative_to(root))


def _look_into_files(
    places: Iterable[tuple[str, LakePath]],
    needles: Needles,
    numbers: Collection[str],
    found: Scan,
    wait_seconds: float,
) -> None:
    """Adds what files hold. A file that is deleted meanwhile holds nothing."""
    waited, temporary = 0.0, settings().temporary
    while True:
        again: list[tuple[str, LakePath]] = []
        for place, file in places:
            try:
                hits, why = _hits(file, place, needles, numbers), None
            except FileNotFoundError:
                continue
            except Unreadable as error:
                if not file.exists():
                    continue
                hits, why = 0, str(error)
            if (why and waited < UNREADABLE_SECONDS) or (
                hits and waited < wait_seconds and _is_inside(file, temporary)
            ):
                again.append((place, file))
            else:
                found.add(place, file, hits, why)
        if not again:
            return
        threading.Event().wait(RETRY_SECONDS)
        waited += RETRY_SECONDS
        places = again


def _hits(file: LakePath, place: str, needles: Needles, numbers: Collection[str]) -> int:
    """Returns how often a file, or its name, holds a value. Raises Unreadable, and FileNotFoundError if it is gone."""
    in_name = sum(1 for _ in needles.hits(place.encode(), is_text=True))
    return in_name + sum(
        1 for part in parts(file, needles.longest, numbers) for _ in needles.hits(part.data, part.is_text)
    )


def _look_into_database(engine: Engine, needles: Needles, found: Scan) -> None:
    stored = MetaData()
    with database.reading(engine) as connection:
        stored.reflect(connection)
        for table in stored.sorted_tables:
            for row in connection.execute(select(table)):
                text = "\0".join(str(value) for value in row if value is not None)
                found.bytes += len(text)
                if hits := sum(1 for _ in needles.hits(text.encode(), is_text=True)):
                    found.hits[f"control database/{table.name}"] += hits
            found.objects += 1


def path_of(place: str) -> LakePath | None:
    """The file of a place; None for a table of the control database."""
    name, _, path = place.partition("/")
    root = roots().get(name)
    return root / path if root else None


def stored_table_of(file: LakePath) -> str | None:
    """The name of the stored table that a file belongs to; None if it belongs to none."""
    lake = locations.lake()
    if not _is_inside(file, lake):
        return None
    layer, *names = str(file).removeprefix(f"{lake}/").split("/")
    return f"{layer}.{names[0]}" if len(names) > 1 and (lake / layer / names[0] / "_delta_log").is_dir() else None
