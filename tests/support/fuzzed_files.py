"""Files as nobody would write them: cut, misnamed, of other formats and encodings, with any bytes in their names."""

import bz2
import codecs
import gzip
import io
import json
import os
import random
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from pyarrow import orc, parquet

FORMATS = ("csv", "json", "text", "parquet", "orc", "avro")
COLUMNS = ("id", "name", "amount", "Amount (EUR)", "\u00b5g", "\u03bcg", "ID", "a.b", "_path", "note")
TEXTS = ("", "x", "Caf\u00e9", "a,b", 'q"q', "1.50", "007", "\u6570", "\U0001f600", "NULL", "true", "-1e3")
ENCODINGS = ("utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-32", "cp1252", "utf-16-le")
COMPRESSIONS = {".gz": gzip.compress, ".bz2": bz2.compress, ".deflate": zlib.compress, ".zst": lambda data: _zstd(data)}
MOMENT = datetime(2026, 3, 1, 12, 0, 0, 123456, UTC)
# Arrow types of columns, each with a value. ORC has the first six.
TYPES = (
    (7, pa.int32()),
    (2**40, pa.int64()),
    (1.5, pa.float64()),
    ("x", pa.string()),
    (MOMENT, pa.timestamp("us", "UTC")),
    (True, pa.bool_()),
    (5.0, pa.float64()),
    (MOMENT, pa.timestamp("ns")),
    (2**63, pa.uint64()),
    (time(1, 2, 3), pa.time64("us")),
    (Decimal("1.50"), pa.decimal128(9, 2)),
    ([1, None], pa.list_(pa.int32())),
    ({"x": "y"}, pa.struct([("x", pa.string())])),
)
# How a CSV begins, by its encoding, longest first; its header and its rows, if nothing in them is ambiguous.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
)
HEADER, ROW = r"[^\r\n\"]+", r"\"([^\"\r\n]|\"\")*\"(,\"([^\"\r\n]|\"\")*\")*"
# Ends each block of an Avro file.
SYNC = b"0123456789abcdef"
ODD_CHARACTERS = "a %#?:;[]{}*\\\"'`^|<>&=+~\u00e9\u202f\u3000\u2028\n\t\x01\x85\U0001f600"
ENDINGS = ("", ".csv", ".json", ".GZ", ".lz4", ".snappy", ".zst", ".gz", ".bz2")


def drop(folder: Path, format_: str, generator: random.Random, count: int) -> None:
    """Puts so many generated files into the folder, with some links, pipes and folders among them.

    Their names are new ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    directory = os.fsencode(folder)
    present = len(list(folder.iterdir()))
    for number in range(present, present + count):
        content, ending = _file(format_, generator)
        path = os.path.join(directory, _name(generator, number) + ending.encode())  # noqa: PTH118
        kind = generator.random()
        if kind < 0.02:
            Path(os.fsdecode(path)).symlink_to("/nowhere")
        elif kind < 0.03:
            os.mkfifo(path)
        elif kind < 0.04:
            os.mkdir(path)  # noqa: PTH102
        else:
            Path(os.fsdecode(path)).write_bytes(content)


def visible(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the name, its bytes that are no UTF-8 escaped, and the path of each file that a flow accounts for."""
    for path in folder.iterdir():
        name = path.name
        is_hidden = name.startswith(".") or (name.startswith("_") and "=" not in name)
        if not is_hidden and not name.endswith("._COPYING_") and not path.is_dir():
            yield name.encode(errors="surrogateescape").decode(errors="backslashreplace"), path


def text(path: Path) -> bytes | None:
    """Returns the bytes of a text; None if it is compressed so that it cannot be read."""
    data = path.read_bytes()
    decompress = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".deflate": zlib.decompress, ".zst": _unzstd}
    ending = next((ending for ending in decompress if path.name.lower().endswith(ending)), None)
    try:
        return decompress[ending](data) if ending and data else data
    except (OSError, EOFError, zlib.error):
        return None


def lines(path: Path) -> list[bytes] | None:
    """Returns the lines of a text that are not blank; None as for `text`."""
    data = text(path)
    if data is None:
        return None
    return [line for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip(b" \t\r")]


def records(path: Path, format_: str) -> int | None:
    """Returns how many records a file holds that is no wrong one; None for a CSV that parsers may divide in several
    ways.
    """
    if format_ == "parquet":
        metadata = parquet.read_metadata(path)
        return sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    if format_ == "orc":
        stripes = orc.ORCFile(path)
        return sum(stripes.read_stripe(number).num_rows for number in range(stripes.nstripes))
    if format_ == "avro":
        return sum(_first_integer(block) for block in path.read_bytes().split(SYNC)[1:-1])
    if format_ == "json":
        found = lines(path)
        assert found is not None
        return len(found)
    data = text(path)
    assert data is not None
    return _rows_of_csv(data) if format_ == "csv" else data.count(b"\n") + (not data.endswith(b"\n"))


def _rows_of_csv(data: bytes) -> int | None:
    """Returns the number of rows behind the header, if each of them has quotes and commas only, as it should."""
    encoding = next((name for mark, name in MARKS if data.startswith(mark)), "latin-1")
    content = data.decode(encoding, errors="replace")
    end = next((end for end in ("\r\n", "\n") if end in content), "\r")
    header, *rows = content.removesuffix(end).split(end)
    is_clear = re.fullmatch(HEADER, header) and all(re.fullmatch(ROW, row) for row in rows)
    return len(rows) if is_clear else None


def _first_integer(block: bytes) -> int:
    """Decodes the positive integer at the begin of a block of Avro."""
    length = next(place for place, byte in enumerate(block) if byte < 0x80) + 1
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(block[:length])) >> 1


def has_no_records(path: Path, format_: str) -> bool:
    """Whether a good file holds nothing: for a CSV, nothing but its header."""
    if format_ in ("parquet", "orc", "avro"):
        return records(path, format_) == 0
    found = lines(path)
    return found is not None and len([line for line in found if line.strip(b"\0 \r")]) <= (format_ == "csv")


def _file(format_: str, generator: random.Random) -> tuple[bytes, str]:
    """Returns the bytes of a file and the ending of its name."""
    format_ = format_ if generator.random() < 0.9 else generator.choice(FORMATS)
    content, ending = _good(format_, generator), f".{format_}"
    chance = generator.random()
    if chance < 0.4:
        return content, ending
    if chance < 0.5:
        return content[: generator.randrange(len(content) + 1)], ending
    if chance < 0.6:
        at = generator.randrange(len(content) + 1)
        return content[:at] + generator.randbytes(generator.randrange(20)) + content[
            at + generator.randrange(9) :
        ], ending
    if chance < 0.65:
        return generator.randbytes(generator.randrange(300)), ending
    if chance < 0.7:
        return b"", ending
    if chance < 0.8:
        return content, generator.choice(ENDINGS)
    compression, compress = generator.choice(list(COMPRESSIONS.items()))
    data = compress(content)
    if generator.random() < 0.3:
        data = data[: generator.randrange(len(data))]
    return data, ending + (compression if generator.random() < 0.8 else generator.choice(ENDINGS))


def _good(format_: str, generator: random.Random) -> bytes:
    names = generator.sample(COLUMNS, generator.randrange(1, 6))
    rows = [{name: generator.choice(TEXTS) for name in names} for _ in range(generator.randrange(5))]
    if format_ == "csv":
        end = generator.choice(["\n", "\r\n", "\r"])
        separator = generator.choice(",,,,;\t")
        cells = [names, *([f'"{text.replace(chr(34), chr(34) * 2)}"' for text in row.values()] for row in rows)]
        return _encoded(end.join(separator.join(record) for record in cells) + end, generator)
    if format_ == "json":
        for row in rows:
            row["amount"] = generator.choice([1, 1.5, None, True, [1, {"x": 2}], "1.5"])  # type: ignore[call-overload]
        texts = [json.dumps(row, ensure_ascii=generator.random() < 0.5) for row in rows]
        return _encoded("\n".join(texts) + generator.choice(["", "\n", "x", "\n[1]"]), generator)
    if format_ == "text":
        return _encoded("\n".join(generator.choice(TEXTS) for _ in rows), generator)
    return _typed(format_, names, len(rows), generator)


def _typed(format_: str, names: list[str], count: int, generator: random.Random) -> bytes:
    if format_ == "avro":
        return _avro(count, generator)
    types = TYPES if format_ == "parquet" else TYPES[:6]
    columns = {}
    for name in names:
        value, type_ = generator.choice(types)
        values = [None if generator.random() < 0.3 else value for _ in range(count)]
        columns[name] = pa.array(values, type_)
    sink = io.BytesIO()
    if format_ == "orc":
        orc.write_table(pa.table(columns), sink)
    else:
        compression = generator.choice(["snappy", "zstd", "none", "brotli"])
        parquet.write_table(pa.table(columns), sink, compression=compression)
    return sink.getvalue()


def _avro(count: int, generator: random.Random) -> bytes:
    """Returns an object container file with a column of numbers."""
    kind = generator.choice(["int", "long"])
    schema = json.dumps({"type": "record", "name": "row", "fields": [{"name": "n", "type": kind}]}).encode()
    header = b"Obj\x01" + _integer(1) + _integer(11) + b"avro.schema" + _integer(len(schema)) + schema + b"\0" + SYNC
    data = b"".join(_integer(generator.randrange(10_000)) for _ in range(count))
    return header + (_integer(count) + _integer(len(data)) + data + SYNC if count else b"")


def _integer(value: int) -> bytes:
    """Encodes a positive integer as Avro does."""
    value, encoded = value << 1, bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _encoded(text: str, generator: random.Random) -> bytes:
    encoding = generator.choice(ENCODINGS) if generator.random() < 0.3 else "utf-8"
    return text.encode(encoding, errors="replace")


def _name(generator: random.Random, number: int) -> bytes:
    """Returns a unique name of any bytes that a file may have."""
    chance = generator.random()
    if chance < 0.5:
        name = b"file"
    elif chance < 0.8:
        name = "".join(
            generator.choices("a %#?:;[]{}*\\\"'`^|<>&=+~\u00e9\u202f\u3000\u2028\n\t\x01\x85\U0001f600", k=12)
        ).encode()
    else:
        name = generator.randbytes(generator.randrange(1, 30)).replace(b"/", b"").replace(b"\0", b"")
    return name + f" {number}".encode()


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def _unzstd(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())
