"""Reads how files begin or end: the header of a CSV, the footer of a Parquet file. The driver reads many at a time."""

import codecs
import csv
import io
import re
import stat
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

import pyarrow
import pyarrow as pa
from pyarrow import fs, orc, parquet

from include.checkpoints.landing_folder import file_system
from include.delta import stored_table
from include.engine.files import avro_header, csv_header, parquet_pages
from include.errors import Unreachable
from include.lake import object_store
from include.settings import settings
from include.spec import FILES_SCHEMA, Files, Table, ddl

# Compressions that Spark reads, by the ending of the name, each with the codec of Arrow.
CODECS = {".gz": "gzip", ".deflate": "gzip", ".bz2": "bz2", ".zst": "zstd"}
# Hadoop's own forms of these, which few programs write. A length in a file of another form ends the JVM.
REFUSED = (".lz4", ".snappy")
READ = "compress it as .gz, .bz2 or .zst"
# How files begin that are no text.
BEGINNINGS = {
    "compressed with gzip": rb"\x1f\x8b\x08",
    "compressed with bzip2": rb"BZh[1-9]1AY&SY",
    "compressed with Zstandard": rb"\x28\xb5\x2f\xfd",
    "compressed with LZ4": rb"\x04\x22\x4d\x18",
    "compressed with xz": rb"\xfd7zXZ\x00",
    "compressed with Snappy": rb"\xff\x06\x00\x00sNaPpY",
    "a ZIP archive": rb"PK(\x03\x04|\x05\x06)",
    "a 7z archive": rb"7z\xbc\xaf\x27\x1c",
    "a Parquet file": rb"PAR1[\x00-\x1f]",
    "an Avro file": rb"Obj\x01",
}
BEGINNING_BYTES = 10
ENDINGS = {"compressed with gzip": ".gz", "compressed with bzip2": ".bz2", "compressed with Zstandard": ".zst"}


def open_text(system: fs.FileSystem, path: str) -> pa.NativeFile:
    """Opens the uncompressed text. Raises OSError with a sentence if it is no text, or compressed in another way."""
    ending = next((ending for ending in (*CODECS, *REFUSED) if path.lower().endswith(ending)), "")
    if ending in REFUSED:
        raise OSError(f"files that end with {ending} are not read: {READ}")
    with system.open_input_stream(path, compression=None) as stream:
        begin = stream.read(BEGINNING_BYTES)
    content = next((words for words, pattern in BEGINNINGS.items() if re.match(pattern, begin)), "")
    if ending and begin and ENDINGS.get(content) != ending and ending != ".deflate":
        content = content or "not so compressed"
        raise OSError(f"its name ends with {ending}, and it is {content}: name it as what it is")
    if not ending and content:
        remedy = f"let its name end with {ENDINGS[content]}" if content in ENDINGS else "give its text as a file"
        raise OSError(f"it is {content}: {remedy}")
    stream = system.open_input_stream(path, compression=None)
    # An empty file has nothing to decompress.
    return pa.CompressedInputStream(stream, CODECS[ending]) if ending and begin else stream


UNREADABLE, VANISHED, EMPTY = "unreadable", "vanished", "empty"
THREADS = 16
HEAD_BYTES = 65_536
LONGEST_HEADER_BYTES = 1_048_576
# Spark would plan for hours.
MOST_COLUMNS = 10_000
csv.field_size_limit(LONGEST_HEADER_BYTES)
CHUNK_BYTES = 8_388_608
# How the rows of a CSV end, as far as Spark has to be told: with CR LF, or some with it and some with LF.
CR_LF, CR_LF_AND_LF = "\r\n", "\r\n|\n"
# How many bytes of a CSV are searched for its line separators.
SEARCHED_BYTES = 67_108_864
# The field of `_rescued_data` for a record that does not fit its header.
RECORD = "_record"
# The length of a compressed chunk of ORC has 23 bits.
MOST_ORC_CHUNK_BYTES = 2**23
# Errors that the content of a file may cause. A length in it may be more than there is memory.
FILE_ERRORS = (OSError, ValueError, pyarrow.ArrowException, csv.Error, RecursionError, MemoryError)
# Codecs of Parquet for which this Spark has no library, by their number in the format.
UNREAD_CODECS = {3: "LZO", 4: "BROTLI"}
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
    order mark, else empty. line_separator: CR_LF or CR_LF_AND_LF for a CSV whose rows end so, else empty. problem: why
    the file is not read. rule: the quarantine's name of the problem.
    """

    path: str
    kind: Hashable = None
    names: tuple[str, ...] = ()
    encoding: str = ""
    line_separator: str = ""
    nanoseconds: frozenset[tuple[str, ...]] = frozenset()
    problem: str = ""
    rule: str = UNREADABLE
    outage: Unreachable | None = None


def read_headers(table: Table, paths: Iterable[str]) -> list[FileHeader]:
    """Returns the heads in the order of `paths`."""
    source = table.source
    assert isinstance(source, Files)
    system, _ = file_system(settings().folder(source.path))
    declared = tuple(filter(None, ddl.columns(table.schema.removesuffix(FILES_SCHEMA))))

    def read_head(path: str) -> FileHeader:
        try:
            _require_regular(system, path)
            return _read_head(system, path, source, declared)
        except FileNotFoundError:
            return FileHeader(path, problem="it was gone before it was read", rule=VANISHED)
        except FILE_ERRORS as error:
            return FileHeader(path, problem=_line(error), outage=outage(system, path))

    with ThreadPoolExecutor(THREADS) as pool:
        heads = list(pool.map(read_head, paths))
    return _check_headers(table, source, heads) if source.format == "csv" and source.header else heads


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


def _require_regular(system: fs.FileSystem, path: str) -> None:
    """Raises OSError for what has no end, such as a pipe, and for a file that a link to a folder above it repeats."""
    if not isinstance(system, fs.LocalFileSystem):
        return
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError("it is no regular file")
    folder = Path(path).parent
    if folder.resolve() != folder:
        folders = [parent.resolve() for parent in Path(path).parents]
        if len(set(folders)) < len(folders):
            raise OSError("it is reached by a link to a folder above it, and repeats a file there: remove the link")


def _check_headers(table: Table, source: Files, heads: list[FileHeader]) -> list[FileHeader]:
    """Returns the heads; unrelated CSV headers, and those with another separator, become problems of their files."""
    columns = _columns(table)
    heads = [
        FileHeader(head.path, problem=reason)
        if not head.problem and (reason := csv_header.separator_reason(head.names, columns, source.separator))
        else head
        for head in heads
    ]
    readable = [head for head in heads if not head.problem]
    unrelated_paths = {
        readable[index].path for index in csv_header.unrelated([head.names for head in readable], columns)
    }
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


def outage(system: fs.FileSystem, path: str) -> Unreachable | None:
    """Returns the error of reading the file's bytes, if any, whatever they mean; a later try may find it intact."""
    try:
        # A pipe would never end.
        _require_regular(system, path)
    except OSError:
        return None
    try:
        with system.open_input_stream(path, compression=None) as stream:
            while stream.read(CHUNK_BYTES):
                pass
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return None
    except OSError as error:
        if isinstance(system, fs.S3FileSystem):
            return object_store.of_text(f"s3a://{path}", str(error))
        if not system.get_file_info(path).is_file:
            return None
        return Unreachable(f"{path} cannot be read now ({_line(error)}): it is tried again")
    return None


def _read_head(system: fs.FileSystem, path: str, source: Files, declared: tuple[str, ...]) -> FileHeader:
    if source.format == "parquet":
        return _parquet_head(system, path)
    if source.format == "orc":
        with system.open_input_file(path) as file:
            return _orc_head(path, file)
    if source.format == "avro":
        with system.open_input_file(path) as file:
            # In a store, each block would cost a request.
            header = avro_header.read(file, checks_blocks=isinstance(system, fs.LocalFileSystem))
            _require_distinct(header.names)
            return FileHeader(path, header.schema, nanoseconds=header.nanoseconds)
    with open_text(system, path) as stream:
        if source.format in ("json", "text"):
            begin = stream.read(len(codecs.BOM_UTF32_LE))
            encoding = next((name for mark, name in BYTE_ORDER_MARKS if begin.startswith(mark)), "")
            if encoding not in ("", "UTF-8"):
                raise OSError(f"it is {encoding}: write it as UTF-8")
            return FileHeader(path) if begin else _empty(path)
        record, encoding, is_decoded, line_separator = _first_record(stream, source)
    if record is None:
        return _empty(path)
    if len(record) > MOST_COLUMNS:
        raise csv.Error(_too_many(len(record)))
    if source.header and not is_decoded:
        raise csv.Error("its header is not UTF-8")
    if source.header:
        csv_header.require_names(record)
    columns = record if source.header else list(declared)
    columns += [""] * (len(record) - len(columns))
    names = _make_unique([name.strip() or f"_c{index}" for index, name in enumerate(columns)])
    return FileHeader(path, (names, encoding, line_separator), names, encoding, line_separator)


def _orc_head(path: str, file: pyarrow.NativeFile) -> FileHeader:
    content = orc.ORCFile(file)
    if content.compression != "UNCOMPRESSED" and content.compression_size > MOST_ORC_CHUNK_BYTES:
        raise OSError(
            f"it claims to be compressed in chunks of {content.compression_size:,} bytes, and "
            f"{MOST_ORC_CHUNK_BYTES:,} are the most"
        )
    if not 0 <= content.content_length <= file.size():
        raise OSError("its footer claims stripes that are larger than the file")
    schema = content.schema.remove_metadata()
    _require_distinct(schema.names)
    return FileHeader(path, schema.to_string())


def _parquet_head(system: fs.FileSystem, path: str) -> FileHeader:
    metadata = parquet.read_metadata(path, filesystem=system)
    if not metadata.num_columns:
        raise OSError("it has no columns")
    if metadata.num_columns > MOST_COLUMNS:
        raise OSError(_too_many(metadata.num_columns))
    with system.open_input_file(path) as file:
        columns = parquet_pages.columns(file)
        if any(not 0 <= column.bytes <= file.size() for column in columns):
            raise OSError("its footer names columns that are larger than the file")
        if unread := sorted({UNREAD_CODECS[column.codec] for column in columns if column.codec in UNREAD_CODECS}):
            raise OSError(f"its columns are compressed with {unread[0]}, which is not read: write it with zstd or gzip")
        # In a store, each page would cost a request.
        for column in columns if isinstance(system, fs.LocalFileSystem) else ():
            parquet_pages.require_bounds(file, column)
    schema = metadata.schema.to_arrow_schema().remove_metadata()
    _require_distinct(schema.names)
    nanoseconds = frozenset(place for field in schema for place in _nanoseconds(field.type, (field.name,)))
    return FileHeader(path, (str(schema), nanoseconds), nanoseconds=nanoseconds)


def _nanoseconds(type_: pyarrow.DataType, place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the places of times in nanoseconds: names of fields, and `ELEMENT` for elements of a list or a map."""
    if pyarrow.types.is_timestamp(type_) and type_.unit == "ns":
        yield place
    elif pyarrow.types.is_struct(type_):
        for field in type_:
            yield from _nanoseconds(field.type, (*place, field.name))
    elif pyarrow.types.is_map(type_):
        yield from _nanoseconds(type_.item_type, (*place, avro_header.ELEMENT))
    elif pyarrow.types.is_list(type_) or pyarrow.types.is_large_list(type_):
        yield from _nanoseconds(type_.value_type, (*place, avro_header.ELEMENT))


def _too_many(columns: int) -> str:
    return f"it has {columns:,} columns, and those of more than {MOST_COLUMNS:,} are not read: divide it"


def _require_distinct(names: Iterable[str]) -> None:
    """Raises OSError for columns that Spark takes for one."""
    seen: dict[str, str] = {}
    for name in names:
        if other := seen.get(ddl.folded(name)):
            raise OSError(f"it has the columns '{other}' and '{name}', which Spark takes for one: rename one of them")
        seen[ddl.folded(name)] = name


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


def _first_record(stream: pyarrow.NativeFile, source: Files) -> tuple[list[str] | None, str, bool, str]:
    """Returns the first record or None, the encoding by the byte order mark, whether the record has that encoding, and
    how the rows end.
    """
    data = b""
    while len(data) < LONGEST_HEADER_BYTES:
        chunk = stream.read(HEAD_BYTES)
        data += chunk
        encoding = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), "")
        text, is_decoded = _decode(data, encoding)
        lines = io.StringIO(text, newline="")
        record = next((record for record in _reader(lines, source) if record), None)
        end = lines.tell()
        if not chunk or (record is not None and 0 < end < len(text)):
            if record is not None and not is_decoded:
                record, is_decoded = _as_utf8(record)
            return record, encoding, is_decoded, _line_separator(data, stream, encoding, source.quote)
    raise csv.Error(f"its first record does not end within {LONGEST_HEADER_BYTES:,} bytes")


def _line_separator(data: bytes, stream: pyarrow.NativeFile, encoding: str, quote: str) -> str:
    """Returns how the rows end, as `FileHeader` has it. data: what was read from the stream already.

    What ends a line within quotes is part of a cell.
    """
    decoder = codecs.getincrementaldecoder(encoding or "latin-1")(errors="replace")
    ends_with, is_quoted, last, searched = {CR_LF: False, "\n": False}, False, "", 0
    while data and searched < SEARCHED_BYTES and not all(ends_with.values()):
        searched += len(data)
        text = last + decoder.decode(data)
        # It may be the first half of a CR LF.
        last = "\r" if text.endswith("\r") else ""
        parts = text.removesuffix(last).split(quote) if quote else [text.removesuffix(last)]
        rows = quote.join(parts[int(is_quoted) :: 2])
        is_quoted ^= len(parts) % 2 == 0
        both = rows.count(CR_LF)
        ends_with[CR_LF] |= both > 0
        ends_with["\n"] |= rows.count("\n") > both
        data = stream.read(CHUNK_BYTES)
    if ends_with[CR_LF]:
        return CR_LF_AND_LF if ends_with["\n"] else CR_LF
    return ""


def _reader(lines: Iterable[str], source: Files) -> Iterator[list[str]]:
    """Returns the records of a CSV, without the comments that precede the first one."""

    def is_passed_over(line: str) -> bool:
        return not line.strip() or (source.comment is not None and line.startswith(source.comment))

    return csv.reader(
        dropwhile(is_passed_over, lines),
        delimiter=source.separator,
        quotechar=source.quote or None,
        quoting=csv.QUOTE_MINIMAL if source.quote else csv.QUOTE_NONE,
        doublequote=source.escape in (None, source.quote),
        escapechar=None if source.escape == source.quote else source.escape,
    )


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
