"""The first record of a CSV file names its columns, or the file goes to the quarantine."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.engine.files import file_headers
from include.engine.files.formats import csv_header
from include.engine.files.formats.format import FileHeader
from tests.support.landing import Landing

SCHEMA = "date STRING, amount STRING, description STRING"


@pytest.fixture(scope="module")
def landing() -> Landing:
    return Landing("headers")


def read_header(landing: Landing, content: bytes, schema: str | None = SCHEMA, **source) -> FileHeader:
    path = landing.drop("a.csv", content)
    [header] = file_headers.read_headers(landing.table(schema=schema, **source), [str(path)])
    return header


GOOD = {
    "those of the table": (b"date,amount,description\n", ("date", "amount", "description")),
    "some, in capitals, and new ones": (b"AMOUNT,shop\n", ("AMOUNT", "shop")),
    "other letters": ("date,Betr\u00e4ge,\u6570\n".encode(), ("date", "Betr\u00e4ge", "\u6570")),
    "a name over two lines": (b'date,"how\nmuch"\n', ("date", "how\nmuch")),
    "one without a name": (b"date,,x\n", ("date", "_c1", "x")),
    "a joiner of letters": (
        "date,\u0645\u06cc\u200c\u0634\u0648\u062f\n".encode(),
        ("date", "\u0645\u06cc\u200c\u0634\u0648\u062f"),
    ),
    "a mark and CRLF": (b"\xef\xbb\xbfdate,amount\r\n", ("date", "amount")),
    "rows in another encoding": ("date,\u00e9\n".encode() + b"1,\xe9\n", ("date", "\u00e9")),
    "a header and nothing else": (b"date", ("date",)),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_header_names_the_columns(landing: Landing, case: str):
    content, names = GOOD[case]
    header = read_header(landing, content)
    assert (header.problem, header.names) == ("", names)


BAD = {
    "bytes that are no text": (b"\xff\xfa\x00,\x9c\n", "its header is not UTF-8"),
    "another encoding": ("d\u00e4te,amount\n".encode("latin-1"), "its header is not UTF-8"),
    "control characters": (b"date,\0\1\n", "its header has characters that cannot be printed: 'date,\\x00\\x01'"),
    "no name at all": (b",,\n", "its header names no column"),
    "another separator": (
        b"date;amount\n",
        "its header 'date;amount' is one name: declare separator=';' if that divides its columns",
    ),
    "other names": (
        b"day,sum\n",
        "its header 'day,sum' has no name in common with the table, which has date, amount, description",
    ),
    "too many names": (
        b",".join(b"%d" % number for number in range(10_001)),
        "it has 10,001 columns, and those of more than 10,000 are not read: divide it",
    ),
    "nothing": (b"", "it is empty"),
    "empty lines": (b"\n\r\n", "it is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_header_is_a_problem_of_its_file(landing: Landing, case: str):
    content, problem = BAD[case]
    assert read_header(landing, content).problem == problem


def test_a_file_without_a_header_has_none_that_could_be_wrong(landing: Landing):
    assert read_header(landing, b"\xff,1,2\n", header=False).problem == ""


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([b"", b"date,"]), st.binary(max_size=60))
def test_no_bytes_become_names_that_nobody_can_read_or_that_the_table_does_not_know(begin: bytes, content: bytes):
    header = read_header(Landing("headers"), begin + content)
    if not header.problem:
        assert {name.lower() for name in header.names} & {"date", "amount", "description"}
        text = "".join("".join(header.names).split())
        assert not [character for character in text if character < " " or character in "\x7f\ufffd"]


@settings(deadline=None)
@given(
    st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1, max_size=3), max_size=5), st.sets(st.sampled_from("ab"))
)
def test_a_batch_that_is_tried_again_behind_its_new_columns_accepts_the_same_files(headers, columns):
    rejected = csv_header.unrelated(headers, columns)
    accepted = [names for index, names in enumerate(headers) if index not in rejected]
    added = columns.union(*accepted)
    assert csv_header.unrelated(headers, added or columns) == rejected


def test_of_first_files_those_that_have_nothing_in_common_with_most_are_strangers():
    headers = [("lorem",), ("date", "amount"), ("date", "amount"), ("amount", "shop"), ("shop", "x")]
    for shuffled in itertools.permutations(headers):
        assert [shuffled[index] for index in csv_header.unrelated(shuffled, ())] == [("lorem",)]


def test_of_two_first_files_the_header_with_more_names_counts():
    assert csv_header.unrelated([("lorem",), ("date", "amount")], ()) == [0]
    assert csv_header.unrelated([("date", "amount"), ("lorem",)], ()) == [1]


def test_a_column_without_a_name_has_nothing_in_common_with_another():
    assert csv_header.unrelated([("garbage", "_c1", "zz")], ("date", "_c1")) == [0]


def test_the_sentence_names_what_was_expected():
    assert (
        csv_header.unrelated_reason(("x",), ())
        == "its header 'x' has no name in common with the other files that came with it"
    )


@pytest.mark.parametrize(("line", "separator"), [("sep=;", ";"), ("sep=,", ","), ("SEP=;", ","), ("sep=\t", "\t")])
def test_a_line_by_which_excel_finds_the_separator_is_no_header(landing, line, separator):
    header = read_header(landing, f"{line}\ndate{separator}amount\n".encode(), schema=None, separator=separator)
    assert header.problem == (
        "its first line names a separator, as only Excel reads it: remove the line, declare separator"
    )
    assert read_header(landing, b"sep,amount\n", schema=None).problem == ""
