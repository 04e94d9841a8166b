"""Reads how files begin or end: the header of a CSV, the footer of a Parquet file. The driver reads many at a time."""

import codecs
import csv
import io
import re
from collections.abc import Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow
from pyarrow import fs, orc, parquet

from include.engine.files import avro_header, csv_header
from include.errors import Unreachable
from include.lake import outages
from include.readers import stored_table
from include.readers.landing_folder import file_system
from include.settings import settings
from include.spec import FILES_SCHEMA, Files, Table, ddl

UNREADABLE, VANISHED, EMPTY = "unreadable", "vanished", "empty"
THREADS = 16
HEAD_BYTES = 65_536
LONGEST_HEADER_BYTES = 1_048_576
csv.field_size_limit(LONGEST_HEADER_BYTES)
CHUNK_BYTES = 8_388_608
CR_LF = "\r\n"
LINE_SEPARATOR = re.compile(r"\r\n|\r|\n")
# The field of `_rescued_data` for a record that does not fit its header.
RECORD = "_record"
# Longest first, because some begin with another.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF8, "UTF-8"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True)
class FileHeader:
    """The head of a file. kind: equal for files that are read together. names: columns of a CSV. encoding: from a byte
    order mark, else empty. line_separator: the first of a CSV, else empty. problem: why the file is not read. rule: the
    quarantine's name of the problem.
    """

    path: str
    kind: Hashable = None
    names: tuple[str, ...] = ()
    encoding: str = ""
    line_separator: str = ""
    problem: str = ""
    rule: str = UNREADABLE


def read_headers(table: Table, paths: Iterable[str]) -> list[FileHeader]:
    """Returns the heads in the order of `paths`. Raises Unreachable if the storage fails rather than a file."""
    source = table.source
    assert isinstance(source, Files)
    system, _ = file_system(settings().folder(source.path))
    declared = tuple(filter(None, ddl.columns(table.schema.removesuffix(FILES_SCHEMA))))

    def read_head(path: str) -> FileHeader:
        try:
            return _read_head(system, path, source, declared)
        except FileNotFoundError:
            return FileHeader(path, problem="it was gone before it was read", rule=VANISHED)
        except (OSError, pyarrow.ArrowException, csv.Error) as error:
            require_bytes(system, path)
            return FileHeader(path, problem=str(error).partition("\n")[0])

    with ThreadPoolExecutor(THREADS) as pool:
        heads = list(pool.map(read_head, paths))
    return _check_headers(table, heads) if source.format == "csv" and source.header else heads


def _check_headers(table: Table, heads: list[FileHeader]) -> list[FileHeader]:
    """Returns the heads; unrelated CSV headers become problems of their files."""
    columns = _columns(table)
    readable = [head for head in heads if not head.problem]
    unrelated_paths = [
        readable[index].path for index in csv_header.unrelated([head.names for head in readable], columns)
    ]
    return [
        FileHeader(head.path, problem=csv_header.unrelated_reason(head.names, columns))
        if head.path in unrelated_paths
        else head
        for head in heads
    ]


def _columns(table: Table) -> list[str]:
    """Returns the declared and stored columns, without those that all tables of files have."""
    names = ddl.columns(table.schema)
    if settings().is_stored(table.name):
        names += [field.name for field in stored_table.open_table(table.name).schema().fields]
    common = ["", *ddl.columns(FILES_SCHEMA)]
    return [name for name in dict.fromkeys(names) if name not in common]


def require_bytes(system: fs.FileSystem, path: str) -> None:
    """Raises Unreachable if the file's bytes cannot be read now; a later try may find it intact."""
    try:
        with system.open_input_stream(path) as stream:
            while stream.read(CHUNK_BYTES):
                pass
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return
    except OSError as error:
        if isinstance(system, fs.S3FileSystem):
            raise outages.of_text(f"s3a://{path}", str(error)) from error
        if not system.get_file_info(path).is_file:
            return
        raise Unreachable(f"{path} cannot be read now ({error}): it is tried again") from error


def _read_head(system: fs.FileSystem, path: str, source: Files, declared: tuple[str, ...]) -> FileHeader:
    if source.format == "parquet":
        schema = parquet.read_schema(path, filesystem=system).remove_metadata()
        return FileHeader(path, schema.to_string())
    if source.format == "orc":
        with system.open_input_file(path) as file:
            return FileHeader(path, orc.ORCFile(file).schema.remove_metadata().to_string())
    with system.open_input_stream(path) as stream:
        if source.format == "avro":
            return FileHeader(path, avro_header.schema(stream))
        if source.format in ("json", "text"):
            return FileHeader(path) if stream.read(1) else _empty(path)
        record, encoding, is_decoded, line_separator = _first_record(stream)
    if record is None:
        return _empty(path)
    if source.header and not is_decoded:
        raise csv.Error("its header is not UTF-8")
    if source.header:
        csv_header.require_names(record)
    columns = record if source.header else list(declared)
    columns += [""] * (len(record) - len(columns))
    names = _make_unique([name.strip() or f"_c{index}" for index, name in enumerate(columns)])
    return FileHeader(path, (names, encoding, line_separator), names, encoding, line_separator)


def _empty(path: str) -> FileHeader:
    return FileHeader(path, problem="it is empty", rule=EMPTY)


def _make_unique(names: list[str]) -> tuple[str, ...]:
    """Makes names unique by adding their position to repeated ones."""
    used = {RECORD}
    for index in range(len(names)):
        while names[index] in used:
            names[index] += f" ({index + 1})"
        used.add(names[index])
    return tuple(names)


def _first_record(stream: pyarrow.NativeFile) -> tuple[list[str] | None, str, bool, str]:
    """Returns the first record or None, the encoding by the byte order mark, whether the record has that encoding, and
    the first line separator.
    """
    data = b""
    while len(data) < LONGEST_HEADER_BYTES:
        chunk = stream.read(HEAD_BYTES)
        data += chunk
        encoding = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), "")
        text, is_decoded = _decode(data, encoding)
        lines = io.StringIO(text, newline="")
        record = next((record for record in csv.reader(lines) if record), None)
        end = lines.tell()
        if not chunk or (record is not None and 0 < end < len(text)):
            if record is not None and not is_decoded:
                record, is_decoded = _as_utf8(record)
            separator = LINE_SEPARATOR.search(text)
            return record, encoding, is_decoded, separator.group() if separator else ""
    raise csv.Error(f"its first record does not end within {LONGEST_HEADER_BYTES:,} bytes")


def _decode(data: bytes, encoding: str) -> tuple[str, bool]:
    """Decodes the bytes. Returns False and one character for each byte if they do not have that encoding."""
    name = "utf-8-sig" if encoding in ("", "UTF-8") else encoding
    try:
        return codecs.getincrementaldecoder(name)("strict").decode(data), True
    except UnicodeDecodeError:
        return data.decode("latin-1"), False


def _as_utf8(record: list[str]) -> tuple[list[str], bool]:
    """Decodes a record of Latin-1 characters as UTF-8, if it is; bytes after it may not be."""
    try:
        return [cell.encode("latin-1").decode("utf-8-sig") for cell in record], True
    except UnicodeDecodeError:
        return record, False
