"""What the driver finds wrong with a file before Spark reads it."""

import bz2
import io
import random
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyarrow import fs, orc

from include.engine.files import file_headers
from include.engine.files.formats import parquet_pages, text_file
from tests.conftest import ROOT
from tests.support.landing import Landing

SCHEMA = b'{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}'
SYNC = b"0123456789abcdef"


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def header(schema: bytes, codec: bytes = b"null") -> bytes:
    """The header of an Avro file, with two entries of metadata. The length of the schema takes two bytes."""
    length = bytes([len(schema) * 2 & 0x7F | 0x80, len(schema) >> 6])
    return (
        b"Obj\x01\x04\x16avro.schema"
        + length
        + schema
        + b"\x14avro.codec"
        + bytes([2 * len(codec)])
        + codec
        + b"\0"
        + SYNC
    )


HEADER = header(SCHEMA)
BLOCK = b"\x04\x04\x0e\x10" + SYNC
TOO_LARGE = "a block of the Avro file is larger than the rest of the file"
TOO_MANY = "a block of the Avro file claims {:,} records, which a file of its size cannot hold"
NO_RECORD = "the schema of the Avro file is none of a record, and so it has no columns"


def problem(landing: Landing, name: str, content: bytes) -> str:
    path = landing.drop(name, content)
    [header] = file_headers.read_headers(landing.table(name.rpartition(".")[2]), [str(path)])
    return header.problem


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        (b"", ""),
        (BLOCK * 3, ""),
        (BLOCK[:-1], TOO_LARGE),
        (b"\x04\xfe\xff\xff\xff\x0f\x0e\x10" + SYNC, TOO_LARGE),
        (b"\x04\x03\x0e\x10" + SYNC, TOO_LARGE),
        (BLOCK + b"\x04", "the Avro file ends early"),
        (b"\xfe\xff\xff\xff\xff\xff\x0f\0" + SYNC, TOO_MANY.format(2**45 - 1)),
        (b"\x03\x04\x0e\x10" + SYNC, TOO_MANY.format(-2)),
    ],
)
def test_a_length_in_an_avro_file_that_would_end_the_jvm_is_a_problem_of_the_file(blocks, sentence):
    assert problem(Landing("file_headers"), "a.avro", HEADER + blocks) == sentence


@pytest.mark.parametrize(
    ("schema", "codec", "sentence"),
    [
        (SCHEMA, b"zstandard", ""),
        (SCHEMA, b"lz9", "its blocks are compressed with 'lz9', which is not read: write it with deflate or zstandard"),
        (b'"long"', b"null", NO_RECORD),
        (b'{"type": "array", "items": "long"}', b"null", NO_RECORD),
        (b'{"type": "record", "name": "r"', b"null", NO_RECORD),
        (b'{"type": "record", "name": "r", "fields": [{"name": "n"}]}', b"null", NO_RECORD),
        (
            SCHEMA.replace(b'"long"', b'["null", "r"]'),
            b"null",
            "its type r holds values of itself, and no column does: write them flat",
        ),
        (
            SCHEMA.replace(b"}]}", b'}, {"name": "N", "type": "int"}]}'),
            b"null",
            "it has the columns 'n' and 'N', which Spark takes for one: rename one of them",
        ),
    ],
)
def test_an_avro_file_that_spark_does_not_read_is_named_with_its_reason(schema, codec, sentence):
    content = header(schema.ljust(64), codec) + BLOCK
    assert problem(Landing("file_headers"), "a.avro", content) == sentence


ENDLESS = "a number in the Avro file has more than 10 bytes"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"Obj\x01" + b"\xff" * 200_000, ENDLESS),
        (b"Obj\x01\x02" + b"\xff" * 200_000, ENDLESS),
        (b"Obj\x01\x02\0" + b"\x80" * 200_000 + b"\x01", ENDLESS),
        (b"Obj\x01\x01" + b"\xff" * 200_000, ENDLESS),
        (HEADER + b"\xff" * 200_000, ENDLESS),
        (b"Obj\x01" + b"\xff" * 9 + b"\x01" + bytes(100), "the header of the Avro file has more than 10,000 entries"),
        (b"Obj\x01" + varint(400_000) + bytes(400_000), "the header of the Avro file has more than 10,000 entries"),
        (b"Obj\x01" + b"\x02\0\0" * 100_000, "the header of the Avro file has more than 10,000 entries"),
    ],
)
def test_the_numbers_in_the_head_of_an_avro_file_have_an_end(content, sentence):
    assert problem(Landing("file_headers"), "a.avro", content) == sentence


def test_a_small_schema_of_avro_that_stands_for_a_billion_columns_is_refused():
    fields = ['{"name": "f0", "type": {"type": "record", "name": "r0", "fields": [{"name": "n", "type": "long"}]}}']
    for number in range(1, 30):
        inner = ", ".join(f'{{"name": "{name}", "type": "r{number - 1}"}}' for name in "ab")
        fields.append(
            f'{{"name": "f{number}", "type": {{"type": "record", "name": "r{number}", "fields": [{inner}]}}}}'
        )
    schema = f'{{"type": "record", "name": "r", "fields": [{", ".join(fields)}]}}'.encode()
    content = b"Obj\x01\x02\x16avro.schema" + varint(2 * len(schema)) + schema + b"\0" + SYNC
    sentence = "it has 1,073,741,823 columns, and those of more than 10,000 are not read: divide it"
    assert problem(Landing("file_headers"), "a.avro", content) == sentence


def as_parquet(**options: Any) -> bytes:
    sink = io.BytesIO()
    rows = pa.table({"n": list(range(50)), "s": ["x" * number for number in range(50)]})
    parquet.write_table(rows, sink, **options)
    return sink.getvalue()


def page(plain: int, encoded: int, values: int = 50) -> bytes:
    """The head of a dictionary's page, in Thrift."""
    lengths = b"\x15\x04\x15" + varint(2 * plain) + b"\x15" + varint(2 * encoded)
    return lengths + b"\x4c\x15" + varint(2 * values) + b"\x15\0\0\0"


PAGE = "a page of its column 'n' "


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        (page(400, 400), PAGE + "is larger than the rest of the column"),
        (page(2**30, 10), PAGE + "claims 1,073,741,824 bytes, and 268,435,456 are the most"),
        (page(400, 10, 401), "a dictionary of its column 'n' claims 401 values in 400 bytes"),
        (b"\x15\x04\x15\x10\x15\x02\x45\x02\0", PAGE + "is damaged"),
        (b"\x1c" * 20, "a part of the Parquet file is damaged"),
    ],
)
def test_a_small_file_that_claims_gigabytes_is_named_before_spark_allocates_them(head, sentence):
    content = as_parquet(compression="none", use_dictionary=["n"])
    begin = parquet.read_metadata(io.BytesIO(content)).row_group(0).column(0).dictionary_page_offset
    assert problem(Landing("file_headers"), "a.parquet", content) == ""
    content = content[:begin] + head + content[begin + len(head) :]
    assert problem(Landing("file_headers"), "a.parquet", content) == sentence


def test_no_bit_of_a_parquet_file_ends_the_process_that_looks_at_it(tmp_path):
    script = """
import sys
from pathlib import Path
from pyarrow import fs
from include.engine.files import file_headers
from include.engine.files.formats.parquet import Parquet
from include.spec import Files
content, path = Path(sys.argv[1]).read_bytes(), Path(sys.argv[1] + ".parquet")
for place in range(len(content) // 2, len(content)):
    for bit in range(8):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        try:
            Parquet().head(fs.LocalFileSystem(), str(path), Files('landed', 'parquet'), ())
        except file_headers.FILE_ERRORS:
            pass
"""
    (tmp_path / "good").write_bytes(as_parquet())
    command = [sys.executable, "-c", script, str(tmp_path / "good")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_chunks_of_orc_are_as_large_as_their_lengths_can_be():
    sink = io.BytesIO()
    orc.write_table(pa.table({"n": [1, 2]}), sink, compression="zlib", compression_block_size=65_536)
    content = sink.getvalue()
    assert problem(Landing("file_headers"), "a.orc", content) == ""
    # The postscript ends before the last byte, which is its length.
    begin = len(content) - 1 - content[-1]
    block = content.index(b"\x18\x80\x80\x04", begin)
    content = content[:block] + b"\x18\x80\x80\x80\x20" + content[block + 4 : -1] + bytes([content[-1] + 1])
    sentence = "it claims to be compressed in chunks of 67,108,864 bytes, and 8,388,608 are the most"
    assert problem(Landing("file_headers"), "a.orc", content) == sentence


@pytest.mark.parametrize("footer", [b"\x19" * 5_000, b"\x15" + b"\xff" * 5_000_000], ids=["nested lists", "an integer"])
def test_a_footer_without_end_is_damaged(footer):
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(OSError, match="damaged"):
        parquet_pages.columns(pa.BufferReader(content))


@pytest.mark.parametrize(
    ("type_", "value"),
    [(6, b"\xfe" + b"\xff" * 8 + b"\x7f"), (1, b""), (8, b"\x01x"), (9, b"\x05")],
    ids=["2**69", "true", "text", "a list"],
)
@pytest.mark.parametrize("field", [4, 7, 9])
def test_a_number_of_a_footer_that_is_none_is_a_problem_of_the_file(field, type_, value):
    good = {4: b"\x05\x08\0", 7: b"\x06\x0e\x08", 9: b"\x06\x12\x08"}
    numbers = good | {field: bytes([type_, 2 * field]) + value}
    column = b"\x09\x06\x18\x01n" + b"".join(numbers.values()) + b"\0"
    footer = b"\x49\x1c\x19\x1c\x3c" + column + b"\0\0\0"
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(OSError, match="damaged"):
        parquet_pages.columns(pa.BufferReader(content))
    good_footer = footer.replace(column, b"\x09\x06\x18\x01n" + b"".join(good.values()) + b"\0")
    content = b"PAR1" + good_footer + len(good_footer).to_bytes(4, "little") + b"PAR1"
    assert parquet_pages.columns(pa.BufferReader(content)) == [parquet_pages.ColumnChunk("n", 0, 4, 4)]


def test_whatever_bytes_of_a_parquet_file_change_its_pages_are_read_or_named():
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"n": list(range(50)), "t": ["x" * n for n in range(50)]}), sink)
    content = sink.getvalue().to_pybytes()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    for _ in range(1_000):
        changed = bytearray(content)
        changed[random_.randrange(4, len(content) - 8)] = random_.randrange(256)
        file = pa.BufferReader(bytes(changed))
        with suppress(OSError):
            for column in parquet_pages.columns(file):
                parquet_pages.require_bounds(file, column)


@pytest.mark.parametrize(
    ("content", "separator"),
    [
        ("a,b\n1,2\n", ""),
        ("a,b\r\n1,2\r\n", "\r\n"),
        ("a,b\r\n1,2\n", "\r\n|\n"),
        ("a,b\r1,2\r", "\r"),
        ("a,b\r", ""),
        ('"a\r",b\n1,2\n', "\n"),
        ('"a\r\n",b\n1,2\n', "\n"),
        ('"a\r",b\r1,2\r', "\r"),
        ('5" of,b\n1,x\ry\n', ""),
        ('"a\r",b\r\n1,2\r\n', "\r\n"),
        ('a,b\n1,"x\ry"\n', ""),
        ("a,b\r1,2\n3,4\n", ""),
        ("a", ""),
    ],
)
def test_spark_is_told_how_the_rows_of_a_csv_end_where_it_would_guess_wrong(content, separator):
    landing = Landing("file_headers")
    path = landing.drop("a.csv", content)
    [header] = file_headers.read_headers(landing.table("csv", header=False), [str(path)])
    assert (header.line_separator, header.problem) == (separator, "")


def test_a_bzip2_file_that_is_cut_anywhere_behind_its_beginning_is_named_and_a_whole_one_is_read(tmp_path):
    random_, system = random.Random(7), fs.LocalFileSystem()
    file = tmp_path / "lines.txt.bz2"
    # The mark of the end begins at each bit of a byte.
    for length in range(1, 60):
        text = random_.randbytes(length)
        whole = bz2.compress(text)
        for content in (whole, whole + whole):
            file.write_bytes(content)
            with text_file.open_text(system, str(file)) as stream:
                assert (text * 2).startswith(stream.read(4))
        for cut in range(1, len(whole) - text_file.BEGINNING_BYTES):
            file.write_bytes(whole[:-cut])
            with pytest.raises(OSError, match="its bzip2 stream has no end"):
                text_file.open_text(system, str(file))
