"""Files of CSV."""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile

import pyarrow
from pyarrow import fs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from include.delta import stored_table
from include.engine.files.formats import csv_header, text_file
from include.engine.files.formats.columns import Columns, FileColumn
from include.engine.files.formats.format import (
    BYTES,
    MOST_COLUMNS,
    RECORD,
    TEXT,
    FileGroup,
    FileHeader,
    Format,
    Resolve,
    any_of,
    as_json,
    empty,
    reader,
    too_many,
    utf8,
    with_row_numbers,
    with_values,
)
from include.engine.files.formats.text import BYTE_ORDER_MARKS
from include.lake import locations
from include.spec import FILES_SCHEMA, Files, Table, ddl

HEAD_BYTES = 65_536
LONGEST_HEADER_BYTES = 1_048_576
csv.field_size_limit(LONGEST_HEADER_BYTES)
CHUNK_BYTES = 8_388_608
# How the rows of a CSV end, where Spark cannot find out: with CR LF, or some with it and some with LF, with CR, or
# with LF although its first cells have another end of a line within quotes.
CR_LF, CR_LF_AND_LF, CR, LF = "\r\n", "\r\n|\n", "\r", "\n"
END = re.compile("\r\n?|\n")
# How many bytes of a CSV are searched for its line separators.
SEARCHED_BYTES = 67_108_864
# Without a quote, Spark takes NUL for it.
NO_QUOTE = "\ue003"
OPTIONS = {
    "multiLine": "true",
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": RECORD,
    "columnPruning": "false",
    # By default a NUL after a doubled quote would be an escape.
    "charToEscapeQuoteEscaping": "\ue002",
    # Spark takes an unquoted empty cell for this text, and then for NULL. A quoted one is an empty text.
    "nullValue": "\ue000\ue001",
}


class Csv(Format):
    def head(self, system: fs.FileSystem, path: str, source: Files, declared: Sequence[str]) -> FileHeader:
        with text_file.open_text(system, path) as stream:
            record, encoding, is_decoded, line_separator = _first_record(stream, source)
        if record is None:
            return empty(path)
        if len(record) > MOST_COLUMNS:
            raise csv.Error(too_many(len(record)))
        if source.header and not is_decoded:
            raise csv.Error("its header is not UTF-8")
        if source.header:
            csv_header.require_names(record)
        columns = record if source.header else list(declared)
        columns += [""] * (len(record) - len(columns))
        names = tuple(_name(name.strip(), index) for index, name in enumerate(columns))
        return FileHeader(path, (names, encoding, line_separator), names, encoding, line_separator)

    def checked(self, table: Table, source: Files, heads: list[FileHeader]) -> list[FileHeader]:
        return _check_headers(table, source, heads) if source.header else heads

    def rows(
        self, spark: SparkSession, source: Files, groups: Sequence[FileGroup], resolve: Resolve
    ) -> list[DataFrame]:
        with_names = [files for files in groups if files.head.names]
        columns = resolve(
            [
                FileColumn(name, TEXT, files.head.path, len(files.heads))
                for files in with_names
                for name in dict.fromkeys(files.head.names)
            ]
        )
        return [_records(spark, list(files.uris), files.head, source, columns) for files in with_names]


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
    if locations.is_stored(table.name):
        names += [field.name for field in stored_table.open_table(table.name).schema().fields]
    common = ["", *ddl.columns(FILES_SCHEMA)]
    return [name for name in dict.fromkeys(names) if name not in common]


def _name(name: str, index: int) -> str:
    # `_rescued_data` has the record by this name.
    return f"{name} ({index + 1})" if name == RECORD else name or f"_c{index}"


def _distinct(names: Iterable[str]) -> list[str]:
    """Returns the names, repeated ones with their position, under which `_rescued_data` has their cells."""
    distinct: dict[str, None] = {}
    for index, name in enumerate(names):
        while name in distinct:
            name += f" ({index + 1})"
        distinct[name] = None
    return list(distinct)


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
        record = next((record for record in _parsed(lines, source) if record), None)
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
    ends_with, is_quoted, last, searched = {CR_LF: False, LF: False}, False, "", 0
    first = first_of_row = ""
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
        ends_with[LF] |= rows.count(LF) > both
        first, first_of_row = first or _end(text.removesuffix(last)), first_of_row or _end(rows)
        data = stream.read(CHUNK_BYTES)
    if ends_with[CR_LF]:
        return CR_LF_AND_LF if ends_with[LF] else CR_LF
    # Spark takes the first one, also one within quotes, for the end of all rows.
    if ends_with[LF]:
        return LF if first_of_row == LF and first != LF else ""
    return CR if first == CR else ""


def _end(text: str) -> str:
    """Returns the first end of a line in the text, if any."""
    found = END.search(text)
    return found[0] if found else ""


def _parsed(lines: Iterable[str], source: Files) -> Iterator[list[str]]:
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


def _records(spark: SparkSession, paths: list[str], head: FileHeader, source: Files, columns: Columns) -> DataFrame:
    """Reads files of the same kind. head: of any of them. Without an encoding, cells are decoded one by one."""
    cells = [f"c{index}" for index in range(len(head.names))]
    schema = T.StructType([T.StructField(name, TEXT) for name in (*cells, RECORD)])
    csv_reader = reader(spark).schema(schema).options(**OPTIONS, encoding=head.encoding or BYTES)
    # By RFC 4180, a quote escapes itself; Spark's default is a backslash.
    quote = source.quote or NO_QUOTE
    csv_reader = csv_reader.options(sep=source.separator, quote=quote, escape=source.escape or quote)
    if source.comment:
        csv_reader = csv_reader.option("comment", source.comment)
    if head.line_separator in (CR_LF, CR, LF):
        # Otherwise Spark makes a LF of another end of a line within a cell.
        csv_reader = csv_reader.option("lineSep", head.line_separator)
    if head.line_separator == CR_LF_AND_LF:
        rows = _without_carriage_returns(csv_reader.option("lineSep", "\n").csv(paths), cells)
    else:
        rows = csv_reader.csv(paths)
    rows = with_row_numbers(rows)
    rows = rows.withColumn("_index", F.col("_row") - int(source.header)).filter("_index >= 0")
    text = F.col if head.encoding else utf8
    values: dict[str, Column] = {}
    rescued: list[tuple[Column, Column]] = [(F.lit(RECORD), F.coalesce(text(RECORD), F.col(RECORD)))]
    needs_rescue = [F.col(RECORD).isNotNull()]
    for name, key, cell in zip(head.names, _distinct(head.names), cells, strict=True):
        field = columns.of(name, TEXT)
        if field and field.name not in values:
            values[field.name] = text(cell)
            # A cell that does not decode is no UTF-8.
            rescued.append((F.lit(key), F.when(text(cell).isNull(), F.col(cell))))
        elif not columns.leaves_out(name):
            rescued.append((F.lit(key), F.coalesce(text(cell), F.col(cell))))
            needs_rescue.append(F.col(cell).isNotNull())
    if not head.encoding:
        # The separator keeps two halves of a character in neighbouring cells from forming one.
        needs_rescue.append(utf8(F.concat_ws(",", *cells)).isNull())
    return with_values(rows, values, F.when(any_of(needs_rescue), as_json(rescued)))


def _without_carriage_returns(rows: DataFrame, cells: list[str]) -> DataFrame:
    """Removes what a line separator of LF leaves of CR LF: one CR at the end of a row, and rows of nothing else."""
    is_blank = F.coalesce(*cells[1:], F.lit("")) == "" if cells[1:] else F.lit(True)
    rows = rows.filter(~(F.col(cells[0]).eqNullSafe("\r") & is_blank))
    return rows.withColumn(cells[-1], F.regexp_replace(cells[-1], "\r\\z", ""))
