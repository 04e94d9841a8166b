"""What is odd about a file, its name or its bytes is said of this file, and stops no other."""

import bz2
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.engine.batch import batch_of_files
from include.engine.check import check
from include.errors import DeclarationError, FlowBroken, Unreachable
from include.lake import locations
from include.lake.paths import remove_tree
from include.ledger import verify
from include.monitoring import status
from include.settings import settings
from include.spec import Cast, Delta, Flow
from tests.support.flows import rows_of
from tests.support.landing import Landing


@pytest.fixture
def landing(name) -> Iterator[Landing]:
    landing = Landing(name)
    yield landing
    landing.remove()


def as_parquet(table: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def reasons(landing: Landing) -> dict[str, str]:
    return {row["_filename"]: row["_reason"] for row in rows_of(f"quarantine.bronze_{landing.name}")}


ODD_NAMES = (
    "blanks\u202f\u3000\u2028\u1680.csv",
    "\u00a0no-break.csv",
    " first and last .csv ",
    "line\nand\ttab\r.csv",
    "back\\slash\\x41.csv",
    "%41%2525#?.csv",
    "co:lon.csv",
    "{a,b}[a]*.csv",
    '"quoted"\'`^|<>~.csv',
    "\x01\x7f\x85.csv",
    "a&b=c+d,e;f@g$!().csv",
    "\U0001f600\ufeff\u200b\u202e.csv",
    "e\u0301.csv",
    "n" * 251 + ".csv",
    "%20 below/\u3000/=x=/it.csv",
)


def test_no_name_of_a_file_stops_its_folder_and_a_corrected_one_is_read(landing, run_once):
    table = landing.table(pattern="*csv*")
    folder = os.fsencode(landing.folder)
    for number, name in enumerate(ODD_NAMES):
        landing.drop(name if len(name) < 200 else "t", f"a\n{number}\n")
        if len(name) >= 200:
            (landing.folder / "t").rename(landing.folder / name)
    with open(os.path.join(folder, b"caf\xe9.csv"), "w") as file:  # noqa: PTH118, PTH123
        file.write("a\n-1\n")
    (landing.folder / "dangling.csv").symlink_to(landing.folder / "nothing")
    os.mkfifo(landing.folder / "pipe.csv")
    (landing.folder / "folder.csv").mkdir()
    (landing.folder / "self.csv").symlink_to("self.csv")
    run_once(table)
    rows = {name: [{"a": str(number)}] for number, name in enumerate(ODD_NAMES)}
    assert landing.rows() == rows
    bad_files = [
        ("caf\\xe9.csv", "misnamed"),
        ("dangling.csv", "dangling"),
        ("pipe.csv", "unreadable"),
        ("self.csv", "dangling"),
    ]
    assert landing.quarantined() == bad_files
    assert reasons(landing)["caf\\xe9.csv"] == "its name is no UTF-8: rename it, and it is read"
    assert status.lag(table) == "0 files"
    os.rename(os.path.join(folder, b"caf\xe9.csv"), os.path.join(folder, "caf\u00e9.csv".encode()))  # noqa: PTH104, PTH118
    landing.drop("nothing", "a\n-2\n")
    # Without its log, the new generation begins with the names in the table and its quarantine.
    remove_tree(locations.checkpoints(table.name) / "1")
    commands.execute(
        database.connect(settings().control_url), Command(Action.RESET_CHECKPOINT, (table.name,), "test", "a test")
    )
    run_once(table)
    run_once(table)
    assert landing.rows() == rows | {"caf\u00e9.csv": [{"a": "-1"}]}
    assert landing.quarantined() == bad_files
    verify.verify(table)


def compressed(codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(b"a\n" + b"1\n" * 2_000)
    return sink.getvalue().to_pybytes()


def test_a_file_that_is_compressed_badly_is_named_with_its_reason_and_no_other_waits(landing, run_once):
    content = b"a\n" + os.urandom(3_000).hex().encode() + b"\n"
    good = {
        "g.csv.gz": gzip.compress(b"a\n1\n") + gzip.compress(b"2\n"),
        "capital.csv.GZ": gzip.compress(b"a\n1\n2\n"),
        "b.csv.bz2": bz2.compress(b"a\n1\n2\n"),
        "d.csv.deflate": zlib.compress(b"a\n1\n2\n"),
    }
    bad = {
        "cut.csv.gz": gzip.compress(content)[:-20],
        "tail.csv.gz": gzip.compress(content) + b"garbage",
        "sum.csv.gz": gzip.compress(content)[:-8] + b"12345678",
        "cut.csv.bz2": bz2.compress(content)[:-20],
        "cut.csv.zst": compressed("zstd")[:-10],
        "cut.csv.deflate": zlib.compress(content)[:-20],
        "plain.csv.gz": b"a\n1\n",
        "plain.csv.bz2": b"a\n1\n",
        "plain.csv.zst": b"a\n1\n",
        "plain.csv.deflate": b"a\n1\n",
        "bzip.csv.gz": bz2.compress(b"a\n1\n"),
        "l.csv.lz4": compressed("lz4"),
        "s.csv.snappy": b"\xff\x06\x00\x00sNaPpY",
        "gzip.csv": gzip.compress(b"a\n1\n"),
        "zip.csv": b"PK\x03\x04" + bytes(30),
        "xz.csv": b"\xfd7zXZ\x00" + bytes(30),
        "none.csv.gz": b"",
    }
    for name, data in (good | bad).items():
        landing.drop(name, data)
    landing.drop("z.csv.zst", compressed("zstd"))
    table = landing.table()
    run_once(table)
    assert {name: len(rows) for name, rows in landing.rows().items()} == dict.fromkeys(good, 2) | {"z.csv.zst": 2_000}
    named = reasons(landing)
    assert named.keys() == bad.keys()
    assert not [reason for reason in named.values() if "An error occurred" in reason]
    assert named["plain.csv.gz"] == "its name ends with .gz, and it is not so compressed: name it as what it is"
    assert named["gzip.csv"] == "it is compressed with gzip: let its name end with .gz"
    assert named["l.csv.lz4"] == "files that end with .lz4 are not read: compress it as .gz, .bz2 or .zst"
    verify.verify(table)


def test_a_file_whose_bytes_cannot_be_read_is_tried_again_and_holds_up_no_other_for_ever(
    landing, run_once, monkeypatch
):
    table = landing.table()
    landing.drop("good.csv", "a\n1\n")
    # Reading it is an error of the device.
    (landing.folder / "bad.csv").symlink_to("/proc/self/mem")
    with pytest.raises(Unreachable, match=r"cannot be read now.*it is tried again"):
        run_once(table)
    monkeypatch.setattr(batch_of_files, "PATIENCE_SECONDS", 0)
    run_once(table)
    assert landing.rows() == {"good.csv": [{"a": "1"}]}
    # Its date is always now, so that it has changed, too.
    assert ("bad.csv", "unreadable") in landing.quarantined()


def test_names_that_differ_as_spark_finds_equal_are_one_column_in_every_format(landing, run_once):
    micro, mu = "\u00b5g", "\u03bcg"
    for format_, first, second in (
        ("json", json.dumps({micro: "1", "K": "a"}), json.dumps({mu: "2", "\u212a": "b"})),
        ("csv", f"{micro},K\n1,a\n", f"{mu},\u212a\n2,b\n"),
        ("parquet", as_parquet(pa.table({micro: ["1"], "K": ["a"]})), as_parquet(pa.table({mu: ["2"], "k": ["b"]}))),
    ):
        folder = Landing(f"{landing.name}_{format_}")
        folder.drop(f"1.{format_}", first)
        run_once(folder.table(format_))
        folder.drop(f"2.{format_}", second)
        both = json.dumps({micro: "3", mu: "4"}) if format_ == "json" else f"{micro},{mu}\n3,4\n"
        both = as_parquet(pa.table({micro: ["3"], mu: ["4"]})) if format_ == "parquet" else both
        folder.drop(f"3.{format_}", both)
        run_once(folder.table(format_))
        rows = {
            f"1.{format_}": [{micro: "1", "K": "a"}],
            f"2.{format_}": [{micro: "2", "K": "b"}],
            f"3.{format_}": [{micro: "3", "rescued": {mu: "4"}}],
        }
        if format_ == "parquet":
            # Spark cannot read both.
            del rows["3.parquet"]
            sentence = f"it has the columns '{micro}' and '{mu}', which Spark takes for one: rename one of them"
            assert reasons(folder) == {"3.parquet": sentence}
        assert folder.rows() == rows


def test_headers_with_blanks_and_odd_signs_name_columns_and_the_most_frequent_spelling_counts(landing, run_once):
    landing.drop("1.csv", "ORDER ID,Amount (EUR),=;,a.b,`x`,_path\n1,2,3,4,5,6\n")
    landing.drop("2.csv", "Order Id,Amount (EUR),=;,a.b,`x`,_path\n1,2,3,4,5,6\n")
    landing.drop("3.csv", "Order Id,Amount (EUR),=;,a.b,`x`,_path\n1,2,3,4,5,6\n")
    table = landing.table()
    run_once(table)
    row = {"Order_Id": "1", "Amount_EUR": "2", "a.b": "4", "`x`": "5", "_path": "6", "rescued": {"=;": "3"}}
    assert landing.rows() == {f"{number}.csv": [row] for number in (1, 2, 3)}
    landing.drop("4.csv", "order_id,amount eur\n7,8\n")
    run_once(table)
    assert landing.rows()["4.csv"] == [{"Order_Id": "7", "Amount_EUR": "8"}]


def test_values_of_typed_files_are_exact_or_rescued(landing, run_once):
    def drop(name: str, **columns: pa.Array) -> None:
        landing.drop(f"{name}.parquet", as_parquet(pa.table(columns)))

    moment = datetime(2026, 3, 1, 12, 0, 0, 123456, UTC)
    nanos = int(moment.timestamp()) * 10**9 + 123_456_000
    stamps = pa.array([nanos, nanos + 7, -1], pa.timestamp("ns", "UTC"))
    drop("1", id=pa.array([1, 2, 3], pa.int32()), t=stamps, _path=pa.array(["x", "y", "z"]), _row=pa.array([7, 8, 9]))
    table = landing.table("parquet")
    run_once(table)
    drop("2", id=pa.array([2**40]), t=pa.array([moment], pa.timestamp("us", "UTC")))
    drop("3", id=pa.array([5.0, 5.5, 2.0**70]))
    bad_text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\4\0\0\0"), pa.py_buffer(b"Caf\xe9")]
    )
    drop("4", _path=bad_text)
    drop("5", t=pa.array([300_000_000_000_000_000], pa.timestamp("us", "UTC")), d=pa.array([date(1, 1, 1)]))
    nested = pa.array(
        [[{"at": nanos}], [{"at": nanos + 7}], None], pa.list_(pa.struct([("at", pa.timestamp("ns", "UTC"))]))
    )
    drop("9", id=pa.array([9, 9, 9]), nested=nested)
    drop("8", id=pa.array([8]), clock=pa.array([time(1, 2, 3)], pa.time64("us")))
    brotli = as_parquet(pa.table({"id": [1]}), compression="brotli")
    landing.drop("6.parquet", brotli)
    landing.drop("7.parquet", as_parquet(pa.table({})))
    run_once(table)
    rows = landing.rows()
    assert rows["1.parquet"] == [
        {"id": 1, "t": moment, "_path": "x", "_row": 7},
        {"id": 2, "t": moment, "_path": "y", "_row": 8, "rescued": {"t": nanos + 7}},
        {"id": 3, "t": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "_path": "z", "_row": 9, "rescued": {"t": -1}},
    ]
    assert rows["2.parquet"] == [{"id": 2**40, "t": moment}]
    assert rows["3.parquet"] == [{"id": 5}, {"rescued": {"id": 5.5}}, {"rescued": {"id": 2.0**70}}]
    assert rows["4.parquet"] == [{"rescued": {"_path": "Caf\u00e9"}}]
    assert rows["5.parquet"] == [{"d": date(1, 1, 1), "rescued": {"t": "+11476-08-15 05:20:00"}}]
    assert rows["8.parquet"] == [{"id": 8, "rescued": {"clock": "01:02:03"}}]
    assert rows["9.parquet"] == [
        {"id": 9, "nested": [{"at": moment}]},
        {"id": 9, "rescued": {"nested": [{"at": nanos + 7}]}},
        {"id": 9},
    ]
    assert reasons(landing) == {
        "6.parquet": "its columns are compressed with BROTLI, which is not read: write it with zstd or gzip",
        "7.parquet": "it has no columns",
    }
    verify.verify(table)


def test_csv_is_divided_as_its_source_declares(landing, run_once):
    landing.drop("1.csv", "# made by hand\nDay;Amount;Note\n2026-03-01;'1;5';'it\\'s'\n# x\n2026-03-02;2;'a\nb'\n")
    landing.drop("2.csv", "Day,Amount,Note\n2026-03-01,1,x\n")
    run_once(landing.table(separator=";", quote="'", escape="\\", comment="#"))
    assert landing.rows() == {
        "1.csv": [
            {"Day": "2026-03-01", "Amount": "1;5", "Note": "it's"},
            {"Day": "2026-03-02", "Amount": "2", "Note": "a\nb"},
        ]
    }
    sentence = "its header 'Day,Amount,Note' is one name: declare separator=',' if that divides its columns"
    assert reasons(landing) == {"2.csv": sentence}
    tabs = Landing(f"{landing.name}_tabs")
    tabs.drop("1.tsv", 'a\tb\n"x\t5" inch\n\t\u00e9\n'.encode())
    run_once(tabs.table(separator="\t", quote=""))
    assert tabs.rows() == {"1.tsv": [{"a": '"x', "b": '5" inch'}, {"b": "\u00e9"}]}


def test_no_character_of_a_cell_or_a_line_is_changed(landing, run_once):
    odd = "\x0c\0\u2028 \u0085\x1a\ufeff\x1f\u2029 "
    cells = (odd, "a\rb", "a\nb", "a\r\nb", "\r", "\n", "\r\n", "\0", "")
    bare, unquoted, text = (Landing(f"{landing.name}_{name}") for name in ("bare", "unquoted", "text"))
    for name, end in (("lf", "\n"), ("crlf", "\r\n"), ("cr", "\r")):
        rows = [f'"{cell}","{cell}",{number}' for number, cell in enumerate(cells)]
        landing.drop(f"{name}.csv", end.join(["x,y,n", *rows, ""]))
        # What is within the first cell must not pass for the end of a row.
        for number, row in enumerate(rows):
            if name == "cr" and "\n" in row:
                continue
            bare.drop(f"{name}{number}.csv", end.join([row, 'z,"",', ""]))
        unquoted.drop(f"{name}.csv", end.join(["x,n", f'"{odd},0', f"\0a\0,1{odd}", ""]))
    text.drop("lines.txt", f"{odd}\na\rb\na\r\r\nb\r\n\r\r\n\xe9\r\r\n".encode("latin-1", "replace") + b"c\r")
    run_once(
        landing.table(),
        bare.table(header=False, schema="x STRING, y STRING, n STRING"),
        unquoted.table(quote=""),
        text.table("text"),
    )
    rows = [{"x": cell, "y": cell, "n": str(number)} for number, cell in enumerate(cells)]
    assert landing.rows() == {"lf.csv": rows, "crlf.csv": rows, "cr.csv": rows}
    assert bare.rows() == {
        f"{name}{number}.csv": [row, {"x": "z", "y": ""}]
        for name in ("lf", "crlf", "cr")
        for number, row in enumerate(rows)
        if name != "cr" or "\n" not in row["x"]
    }
    rows = [{"x": f'"{odd}', "n": "0"}, {"x": "\0a\0", "n": f"1{odd}"}]
    assert unquoted.rows() == {f"{name}.csv": rows for name in ("lf", "crlf", "cr")}
    shown = odd.encode("latin-1", "replace").decode("latin-1")
    assert [row.get("value", row.get("rescued")) for row in text.rows()["lines.txt"]] == [
        {"_record": shown},
        "a\rb",
        "a\r",
        "b",
        "\r",
        {"_record": "\xe9\r"},
        "c",
    ]


def test_a_file_that_is_cut_off_says_why_it_cannot_be_read_and_nothing_else(landing, run_once):
    lines = b"".join(b'{"a": "%d"}\n' % number for number in range(20_000))
    landing.drop("cut.json.gz", gzip.compress(lines)[:-20_000])
    run_once(landing.table("json", schema="a STRING"))
    assert reasons(landing) == {"cut.json.gz": "EOFException: Unexpected end of input stream"}


def test_json_documents_of_many_lines_are_rows(landing, run_once):
    rows = [{"a": "1", "b": {"c": [1, {"d": "}{"}]}}, {"a": "2"}]
    landing.drop("array.json", json.dumps(rows, indent=2))
    landing.drop("each.json", "\ufeff" + "\n".join(json.dumps(row, indent=2) for row in rows))
    landing.drop("lines.json", "\n".join(map(json.dumps, rows)))
    landing.drop("cut.json", json.dumps(rows, indent=2)[:-6])
    landing.drop("bytes.json", b'{"a": "1"}\n{"a":\n "Caf\xe9"}\nx')
    landing.drop("none.json", b"\n")
    table = landing.table("json", multi_line=True)
    run_once(table)
    whole = [{"a": "1", "b": '{"c":[1,{"d":"}{"}]}'}, {"a": "2"}]
    assert landing.rows() == {
        "array.json": whole,
        "each.json": whole,
        "lines.json": whole,
        "cut.json": [whole[0], {"rescued": {"_record": '{\n    "a": "2"'}}],
        "bytes.json": [
            {"a": "1"},
            {"rescued": {"_record": '{"a":\n "Caf\u00e9"}'}},
            {"rescued": {"_record": "x"}},
        ],
    }
    assert landing.quarantined() == []
    verify.verify(table)


def test_a_column_that_files_do_not_have_yet_is_null_once_it_is_declared(landing, run_once, spark):
    bronze = landing.table()
    silver = Flow(
        name=f"silver.{landing.name}",
        comment="typed",
        source=Delta(bronze.name),
        parse=Cast(into=("fare", "tip")),
        schema="fare INT, tip INT, _filename STRING, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
    )
    tables = Catalog({table.name: table for table in (bronze, silver)})
    assert check.notes(tables) == [
        f"{silver.name} is not judged, as {bronze.name} gets its columns from its first files: declare in its schema "
        f"those that {silver.name} needs, and they are NULL until a file has them"
    ]
    landing.drop("1.csv", "fare\n7\n")
    run_once(bronze)
    remedy = f"declare `tip STRING` in the schema of {bronze.name}, and it is NULL until a file has it"
    with pytest.raises(DeclarationError, match=f"Cast of 'tip', which {bronze.name} has not so far: {remedy}"):
        check.check(spark, tables)
    with pytest.raises(FlowBroken, match="declare it in the schema of their bronze table") as exception:
        run_once(silver)
    assert exception.value.error.startswith("UNRESOLVED_COLUMN")
    bronze = landing.table(schema="fare STRING, tip STRING")
    tables = Catalog({table.name: table for table in (bronze, silver)})
    check.check(spark, tables)
    assert check.notes(tables) == []
    run_once(bronze, silver)
    landing.drop("2.csv", "fare,tip\n8,2\n")
    run_once(bronze, silver)
    rows = {row["_filename"]: (row["fare"], row["tip"]) for row in rows_of(silver.name)}
    assert rows == {"1.csv": (7, None), "2.csv": (8, 2)}


def test_a_link_to_a_folder_above_it_repeats_no_row(landing, run_once):
    landing.drop("below/a.csv", "a\n1\n")
    (landing.folder / "below" / "again").symlink_to(landing.folder)
    run_once(landing.table())
    assert landing.rows() == {"below/a.csv": [{"a": "1"}]}
    assert {rule for _, rule in landing.quarantined()} == {"unreadable"}
    assert set(reasons(landing).values()) == {
        "it is reached by a link to a folder above it, and repeats a file there: remove the link"
    }


def test_a_file_of_any_date_is_read_or_named_once_and_hides_no_other(name, run_once):
    # Unlike others, this file system keeps dates that readers of tables do not know.
    with TemporaryDirectory(dir="/dev/shm") as folder:
        landing = Landing(folder)
        table = replace(landing.table(), name=f"bronze.{name}")
        far, before = 300_000_000_000, -70_000_000_000
        for number, seconds in enumerate((far, before, far, before, far)):
            file = landing.drop(f"{number}.csv", ["a\n1\n", "a\n2\n", "", "\ue000\n", "a\n5\n"][number])
            os.utime(file, (seconds, seconds))
        assert file.stat().st_mtime == far
        run_once(table)
        # Spark would take it for one that it has read long ago.
        landing.drop("of today.csv", "a\n6\n")
        os.utime(landing.folder / "0.csv", (far + 1, far + 1))
        os.utime(landing.folder / "4.csv")
        run_once(table)
        landing.drop("later.csv", "a\n7\n")
        run_once(table)
        rows = {row["_filename"]: row["a"] for row in rows_of(table.name)}
        assert rows == {"0.csv": "1", "1.csv": "2", "4.csv": "5", "of today.csv": "6", "later.csv": "7"}
        bad_files = sorted(
            (row["_filename"], *row["_rules"], row["modification_time"] is None) for row in rows_of(table.quarantine)
        )
        assert bad_files == [
            ("0.csv", "changed", True),
            ("2.csv", "empty", True),
            ("3.csv", "unreadable", True),
            ("4.csv", "changed", False),
        ]
        assert status.lag(table) == "0 files"
        verify.verify(table)
