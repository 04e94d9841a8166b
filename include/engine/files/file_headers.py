"""How a file begins or ends: the header of a CSV, the footer of a Parquet file, read by the driver, many at a time."""

import codecs
import csv
import io
from collections.abc import Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow
from deltalake import DeltaTable
from pyarrow import fs, parquet

from include.engine.files import csv_header
from include.errors import Unreachable
from include.readers.landing_folder import file_system
from include.settings import settings
from include.spec import FILES_SCHEMA, Files, Table, ddl

UNREADABLE, VANISHED, EMPTY = "unreadable", "vanished", "empty"
THREADS = 16
HEAD_BYTES = 65_536
LONGEST_HEADER_BYTES = 1_048_576
csv.field_size_limit(LONGEST_HEADER_BYTES)
CHUNK_BYTES = 8_388_608
# Under which a record that does not fit its file is rescued.
RECORD = "_record"
# Longest first, because one begins like another.
MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF8, "UTF-8"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True)
class Head:
    """kind: what files have to share to be read together. names: of a CSV's columns. encoding: what a byte-order
    mark says, else empty. problem: why it is not read; rule: by which name the quarantine knows that."""

    path: str
    kind: Hashable = None
    names: tuple[str, ...] = ()
    encoding: str = ""
    problem: str = ""
    rule: str = UNREADABLE


def heads(table: Table, paths: Iterable[str]) -> list[Head]:
    """In the order of `paths`. Raises Unreachable where it is not the file that is at fault."""
    source = table.source
    assert isinstance(source, Files)
    system, _ = file_system(settings().folder(source.path))
    declared = tuple(filter(None, ddl.columns(table.schema.removesuffix(FILES_SCHEMA))))

    def look(path: str) -> Head:
        try:
            return _look(system, path, source, declared)
        except FileNotFoundError:
            return Head(path, problem="it was gone before it was read", rule=VANISHED)
        except (OSError, pyarrow.ArrowException, csv.Error) as error:
            require_bytes(system, path)
            return Head(path, problem=str(error).partition("\n")[0])

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(look, paths))
    return _without_strangers(table, found) if source.format == "csv" and source.header else found


def _without_strangers(table: Table, heads: list[Head]) -> list[Head]:
    """The same, where a header that has nothing to do with the table is a problem of its file."""
    columns = _columns(table)
    good = [head for head in heads if not head.problem]
    strange = [good[place].path for place in csv_header.strangers([head.names for head in good], columns)]
    return [
        Head(head.path, problem=csv_header.stranger(head.names, columns)) if head.path in strange else head
        for head in heads
    ]


def _columns(table: Table) -> list[str]:
    """Of the table as it is declared, and as it is stored, without those that every table of files has."""
    names = ddl.columns(table.schema)
    if settings().is_stored(table.name):
        names += [field.name for field in DeltaTable(str(settings().table_path(table.name))).schema().fields]
    of_all = ["", *ddl.columns(FILES_SCHEMA)]
    return [name for name in dict.fromkeys(names) if name not in of_all]


def require_bytes(system: fs.FileSystem, path: str) -> None:
    """Raises Unreachable where a file's bytes cannot be had now; then another try may find it in order."""
    try:
        with system.open_input_stream(path) as stream:
            while stream.read(CHUNK_BYTES):
                pass
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return
    except OSError as error:
        if not system.get_file_info(path).is_file:
            return
        raise Unreachable(f"{path} cannot be read now ({error}): it is tried again") from error


def _look(system: fs.FileSystem, path: str, source: Files, declared: tuple[str, ...]) -> Head:
    if source.format == "parquet":
        schema = parquet.read_schema(path, filesystem=system).remove_metadata()
        return Head(path, schema.to_string())
    with system.open_input_stream(path) as stream:
        if source.format == "json":
            return Head(path) if stream.read(1) else _empty(path)
        record, encoding, is_decoded = _first_record(stream)
    if record is None:
        return _empty(path)
    if source.header and not is_decoded:
        raise csv.Error("its header is not UTF-8")
    if source.header:
        csv_header.require_names(record)
    given = record if source.header else list(declared)
    given += [""] * (len(record) - len(given))
    names = _apart([name.strip() or f"_c{place}" for place, name in enumerate(given)])
    return Head(path, (names, encoding), names, encoding)


def _empty(path: str) -> Head:
    return Head(path, problem="it is empty", rule=EMPTY)


def _apart(names: list[str]) -> tuple[str, ...]:
    """A name that comes again says where it stands."""
    seen = {RECORD}
    for place in range(len(names)):
        while names[place] in seen:
            names[place] += f" ({place + 1})"
        seen.add(names[place])
    return tuple(names)


def _first_record(stream: pyarrow.NativeFile) -> tuple[list[str] | None, str, bool]:
    """None where there is none; what a byte-order mark says of the file; whether the record is in that encoding."""
    data = b""
    while len(data) < LONGEST_HEADER_BYTES:
        more = stream.read(HEAD_BYTES)
        data += more
        encoding = next((name for mark, name in MARKS if data.startswith(mark)), "")
        text, is_decoded = _text(data, encoding)
        lines = io.StringIO(text, newline="")
        record = next((record for record in csv.reader(lines) if record), None)
        end = lines.tell()
        if not more or (record is not None and 0 < end < len(text)):
            if record is not None and not is_decoded:
                record, is_decoded = _decoded(record)
            return record, encoding, is_decoded
    raise csv.Error(f"its first record does not end within {LONGEST_HEADER_BYTES:,} bytes")


def _text(data: bytes, encoding: str) -> tuple[str, bool]:
    """And whether that is its encoding; if it is not, each byte stands for a character."""
    name = "utf-8-sig" if encoding in ("", "UTF-8") else encoding
    try:
        return codecs.getincrementaldecoder(name)("strict").decode(data), True
    except UnicodeDecodeError:
        return data.decode("latin-1"), False


def _decoded(record: list[str]) -> tuple[list[str], bool]:
    """A record of bytes as text, where it is UTF-8 although something behind it is not."""
    try:
        return [cell.encode("latin-1").decode("utf-8-sig") for cell in record], True
    except UnicodeDecodeError:
        return record, False
