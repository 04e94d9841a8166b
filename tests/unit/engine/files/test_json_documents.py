"""A file of JSON is divided into its documents, byte by byte as they are."""

import json
import random

import pytest

from include.engine.files.formats import json_documents

CASES = {
    "nothing": (b" \n", []),
    "lines": (b'{"a": 1.10}\n{"a": 2}\n', [b'{"a": 1.10}', b'{"a": 2}']),
    "pretty": (b'{\n "a": {"b": [1,\n 2]}\n}\n{\n}', [b'{\n "a": {"b": [1,\n 2]}\n}', b"{\n}"]),
    "an array": (b'\xef\xbb\xbf [ {"a": 1e400}, {"b": "},{"} ]\n', [b'{"a": 1e400}', b'{"b": "},{"}']),
    "arrays and objects": (b'[{"a":1}]{"b":2}\n[[3]]', [b'{"a":1}', b'{"b":2}', b"[3]"]),
    "brackets and quotes in texts": (b'{"a\\"}": "\\\\"}{"b":"]"}', [b'{"a\\"}": "\\\\"}', b'{"b":"]"}']),
    "behind the end": (b'[{"a":1}] x', [b'{"a":1}', b"x"]),
    "between documents": (b'{"a":1} x {"b":2}', [b'{"a":1}', b'x {"b":2}']),
    "a cut array": (b'[{"a":1},{"b":', [b'{"a":1}', b'{"b":']),
    "a cut text": (b'[{"a":1},{"b":"x}', [b'{"a":1}', b'{"b":"x}']),
    "too many ends": (b'{"a":1}}]', [b'{"a":1}', b"}]"]),
    "no UTF-8": (b'{"a":"\xe9"}\xff', [b'{"a":"\xe9"}', b"\xff"]),
    "numbers": (b"1 2", [b"1 2"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_divided_into_its_documents(case: str):
    content, documents = CASES[case]
    assert json_documents.of_bytes(content) == documents


def test_no_byte_but_blanks_commas_and_brackets_of_arrays_is_lost():
    for seed in range(300):
        generator = random.Random(seed)
        content = "".join(generator.choices('[]{},:" \n\\a1', k=generator.randrange(40))).encode()
        left = b"".join(json_documents.of_bytes(content))
        assert bytes(sorted(left.translate(None, b"[], \n"))) == bytes(sorted(content.translate(None, b"[], \n")))


def test_documents_are_found_however_they_are_written():
    for seed in range(100):
        generator = random.Random(seed)
        rows = [{"k": generator.choice(["}", "[{", '"', "\\", 1.5, None, [1, {"x": []}]])} for _ in range(5)]
        indent = generator.choice([None, 2])
        is_array = generator.random() < 0.5
        text = (
            json.dumps(rows, indent=indent) if is_array else "\n".join(json.dumps(row, indent=indent) for row in rows)
        )
        assert [json.loads(document) for document in json_documents.of_bytes(text.encode())] == rows
