"""What the driver finds wrong with a file before Spark reads it."""

import pytest

from include.engine.files import file_headers
from tests.support.landing import Landing

SCHEMA = b'{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}'
SYNC = b"0123456789abcdef"
# One entry of metadata, with a length of two bytes.
HEADER = (
    b"Obj\x01\x02\x16avro.schema" + bytes([len(SCHEMA) * 2 & 0x7F | 0x80, len(SCHEMA) >> 6]) + SCHEMA + b"\0" + SYNC
)
BLOCK = b"\x04\x04\x0e\x10" + SYNC
TOO_LARGE = "a block of the Avro file is larger than the rest of the file"


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
    ],
)
def test_a_length_in_an_avro_file_that_would_end_the_jvm_is_a_problem_of_the_file(blocks, sentence):
    assert problem(Landing("file_headers"), "a.avro", HEADER + blocks) == sentence
