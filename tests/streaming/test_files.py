"""A flow reads each file exactly once, whatever it holds and whenever it arrives."""

import json
import os
import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.errors import PySparkException

from include import catalog
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.engine.batch import batch_of_files
from include.errors import FlowBroken, FlowFailed, Unreachable
from include.lake import locations
from include.lake.paths import remove_tree
from include.ledger import verify
from include.monitoring import status
from include.settings import settings
from include.spec import Append, Cast, Delta, Expect, Flow, Table
from tests.support.commits import fail_commits
from tests.support.flows import Driver, only_in_full_runs, rows_of, wait_for_rows
from tests.support.landing import Landing

OLD_DATE = datetime(1990, 1, 1, tzinfo=UTC)


@pytest.fixture
def landing(name) -> Landing:
    return Landing(name)


def as_parquet(**columns) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def fails(monkeypatch):
    """Runs flows whose commits fail: `fails(run_once, table)`."""

    def run(run_once, *tables: Table) -> None:
        with monkeypatch.context() as patched:
            fail_commits(patched)
            with pytest.raises(FlowFailed, match="the disk is gone"):
                run_once(*tables)

    return run


LINE_ROW = {"date": "2019-08-04", "amount": "500.00", "description": "Pay"}
LINE = "2019-08-04,500.00,Pay\n"
SCHEMA = "date STRING, amount STRING, description STRING"
HEADER = "date,amount,description\n"
# file name -> (content, rows)
CSV_CASES: dict[str, tuple[bytes, list[dict]]] = {
    "plain.csv": ((HEADER + LINE).encode(), [LINE_ROW]),
    "mark.csv": (b"\xef\xbb\xbf" + (HEADER + LINE).encode(), [LINE_ROW]),
    "utf16.csv": (
        (HEADER + "2019-08-04,1,Caf\u00e9\n").encode("utf-16"),
        [{**LINE_ROW, "amount": "1", "description": "Café"}],
    ),
    "crlf.csv": ((HEADER + LINE).replace("\n", "\r\n").encode(), [LINE_ROW]),
    "lf, then crlf.csv": (
        f'{HEADER}2019-08-04,500.00,Pay\r\n\r\n{LINE}2019-08-04,1,"a\r\nb"\r\n2019-08-04,2,"c\nd"\r\n{LINE}'.encode(),
        [
            LINE_ROW,
            LINE_ROW,
            {**LINE_ROW, "amount": "1", "description": "a\r\nb"},
            {**LINE_ROW, "amount": "2", "description": "c\nd"},
            LINE_ROW,
        ],
    ),
    "crlf, then lf.csv": ((HEADER.replace("\n", "\r\n") + LINE + LINE).encode(), [LINE_ROW, LINE_ROW]),
    "crlf in utf16.csv": (
        (HEADER + '2019-08-04,1,"a\nb"\n').replace("\n", "\r\n").encode("utf-16"),
        [{**LINE_ROW, "amount": "1", "description": "a\r\nb"}],
    ),
    "no end.csv": ((HEADER + LINE).strip().encode(), [LINE_ROW]),
    "quoted line.csv": (
        f'{HEADER}2019-08-04,1,"Caf\u00e9\nCentral, ""old"""\n{LINE}'.encode(),
        [{**LINE_ROW, "amount": "1", "description": 'Café\nCentral, "old"'}, LINE_ROW],
    ),
    "short.csv": (
        f"{HEADER}2019-08-04,1\n{LINE}".encode(),
        [{"date": "2019-08-04", "amount": "1", "rescued": {"_record": "2019-08-04,1"}}, LINE_ROW],
    ),
    "long.csv": (
        f"{HEADER}2019-08-04,500.00,Pay,x,é\n".encode(),
        [{**LINE_ROW, "rescued": {"_record": "2019-08-04,500.00,Pay,x,é"}}],
    ),
    "unclosed.csv": (
        f'{HEADER}2019-08-04,"1\n{LINE}'.encode(),
        [{"date": "2019-08-04", "amount": f"1\n{LINE}", "rescued": {"_record": f'2019-08-04,"1\n{LINE}'.rstrip()}}],
    ),
    "header.csv": (HEADER.encode(), []),
    "blank lines.csv": (f"\n\n{HEADER}\n{LINE}\n\n".encode(), [LINE_ROW]),
    "latin.csv": (
        (HEADER + "2019-08-04,1,Caf\u00e9\n" + LINE).encode("latin-1"),
        [{"date": "2019-08-04", "amount": "1", "rescued": {"description": "Café"}}, LINE_ROW],
    ),
    "order.csv": (b"description,date,amount\nPay,2019-08-04,500.00\n", [LINE_ROW]),
    "case.csv": (
        b"Date,AMOUNT,description,date,date\n2019-08-04,500.00,Pay,x,y\n",
        [{**LINE_ROW, "rescued": {"date": "x", "date (5)": "y"}}],
    ),
    "more.csv": (
        b"date,amount,description,_index,a=b;\n2019-08-04,500.00,Pay,7,8\n",
        [{**LINE_ROW, "rescued": {"_index": "7", "a=b;": "8"}}],
    ),
    "nothing.csv": (
        f'{HEADER}2019-08-04,,Pay\n,"",\n'.encode(),
        [{"date": "2019-08-04", "description": "Pay"}, {"amount": ""}],
    ),
    "a b*[c]{d}?%20+\u00e9#.csv": ((HEADER + LINE).encode(), [LINE_ROW]),
    "below/it.csv": ((HEADER + LINE).encode(), [LINE_ROW]),
    "below/k=v/it.csv": ((HEADER + LINE).encode(), [LINE_ROW]),
}


def test_a_name_that_a_header_repeats_is_one_column_and_its_second_value_is_rescued(landing, run_once):
    landing.drop("new.csv", "a,b,a\n1,2,3\n")
    landing.drop("like a stored one.csv", "a,x,a,a_3\n4,5,6,7\n")
    landing.drop("unnamed.csv", "a,b,,\n8,9,10,11\n")
    run_once(landing.table(schema="a STRING, a_3 STRING", new_columns="add"))
    assert landing.rows() == {
        "new.csv": [{"a": "1", "b": "2", "rescued": {"a (3)": "3"}}],
        "like a stored one.csv": [{"a": "4", "x": "5", "a_3": "7", "rescued": {"a (3)": "6"}}],
        "unnamed.csv": [{"a": "8", "b": "9", "_c2": "10", "_c3": "11"}],
    }


def test_what_is_odd_about_a_csv_file_costs_no_value_and_no_other_file(landing, run_once):
    for file, (content, _) in CSV_CASES.items():
        landing.drop(file, content)
    landing.drop(".hidden.csv", HEADER + LINE)
    landing.drop("_temporary/part.csv", HEADER + LINE)
    landing.drop("other.txt", HEADER + LINE)
    run_once(
        landing.table(schema="date STRING, amount STRING, description STRING", new_columns="rescue", pattern="*.csv")
    )
    assert landing.rows() == {file: rows for file, (_, rows) in CSV_CASES.items() if rows}
    assert landing.quarantined() == []


def test_a_csv_file_that_is_no_table_costs_neither_a_column_nor_a_row_and_is_named(landing, run_once, fails):
    noise = random.Random(7).randbytes(2_000)
    table = landing.table()
    landing.drop("a.csv", HEADER + LINE)
    landing.drop("b noise.csv", noise)
    fails(run_once, table)
    run_once(table)
    landing.drop("c.csv", HEADER.replace("description", "text") + LINE)
    landing.drop("d noise.csv", noise)
    landing.drop("e semicolons.csv", "date;amount\n2019-08-04;1\n")
    landing.drop("f empty.csv", "")
    fails(run_once, table)
    run_once(table)
    landing.drop("g noise.csv", noise)
    landing.drop("h.csv", HEADER)
    run_once(table)
    assert landing.rows() == {"a.csv": [LINE_ROW], "c.csv": [{"date": "2019-08-04", "amount": "500.00", "text": "Pay"}]}
    columns = [name for name in rows_of(table.name)[0] if not name.startswith("_")]
    assert sorted(columns) == ["amount", "date", "description", "text"]
    assert landing.quarantined() == [
        ("b noise.csv", "unreadable"),
        ("d noise.csv", "unreadable"),
        ("e semicolons.csv", "unreadable"),
        ("f empty.csv", "empty"),
        ("g noise.csv", "unreadable"),
    ]
    verify.verify(table)


def test_a_reader_of_a_folder_that_is_empty_still_waits_for_its_columns_and_then_goes_on(landing, run_once):
    bronze = landing.table()
    silver = Flow(
        name=f"silver.{landing.name}",
        comment="typed",
        source=Delta(bronze.name),
        parse=Cast(into=("date",)),
        schema="date DATE, description STRING, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
        expect=(Expect("dated", "date IS NOT NULL"),),
    )
    run_once(bronze, silver)
    landing.drop("a.csv", HEADER + LINE)
    run_once(bronze, silver)
    assert [(str(row["date"]), row["description"]) for row in rows_of(silver.name)] == [("2019-08-04", "Pay")]
    verify.verify(silver)


def test_a_json_key_that_nobody_can_read_becomes_no_column(landing, run_once):
    landing.drop("a.json", json.dumps({"a": "x", "\1\2": "y", "\ufffd": "z"}))
    run_once(landing.table(format="json"))
    assert landing.rows() == {"a.json": [{"a": "x", "rescued": {"\1\2": "y", "\ufffd": "z"}}]}


def test_a_csv_file_without_a_header_has_the_declared_columns_in_order(landing, run_once):
    landing.drop("a.csv", LINE + "2019-08-05,1,x,y\n")
    landing.drop("mark.csv", "\ufeff" + LINE)
    run_once(landing.table(schema=SCHEMA, header=False))
    ragged_row = {"date": "2019-08-05", "amount": "1", "description": "x", "rescued": {"_record": "2019-08-05,1,x,y"}}
    assert landing.rows() == {"a.csv": [LINE_ROW, ragged_row], "mark.csv": [LINE_ROW]}


def test_what_is_odd_about_a_line_of_json_costs_no_value_and_no_other_line(landing, run_once):
    lines = {
        b'\xef\xbb\xbf{"a": "x"}\r': {"a": "x"},
        b"": None,
        b'{"a": 1.10, "b": {"c": [1, null]}, "d": 12345678901234567890}': {
            "a": "1.10",
            "b": '{"c":[1,null]}',
            "rescued": {"d": "12345678901234567890"},
        },
        b'  {"a": true, "b": null}  ': {"a": "true"},
        b'{"a": "x", "A": "y"}': {"a": "x", "rescued": {"A": "y"}},
        b'{"A": "y"}': {"a": "y"},
        b'{"a": "x", "a": "y"}': {"a": "y", "rescued": {"_record": '{"a": "x", "a": "y"}'}},
        b'{"a": "x"}],[{"a": "y"}': {"rescued": {"_record": '{"a": "x"}],[{"a": "y"}'}},
        b'{"a": "\\ud800"}': {"rescued": {"_record": '{"a": "\\ud800"}'}},
        b'{"a": NaN}': {"a": "NaN"},
        b'{"a": "x"} {"a": "y"}': {"rescued": {"_record": '{"a": "x"} {"a": "y"}'}},
        b'{"a": "x"': {"rescued": {"_record": '{"a": "x"'}},
        b"[1]": {"rescued": {"_record": "[1]"}},
        b'{"a": "x"\r': {"rescued": {"_record": '{"a": "x"'}},
        b'{"a": "Caf\xe9\r': {"rescued": {"_record": '{"a": "Caf\xe9'}},
        b'{"a": "x", "a": "y"}\r': {"a": "y", "rescued": {"_record": '{"a": "x", "a": "y"}'}},
        b"null": {"rescued": {"_record": "null"}},
        b'{"a": "Caf\xe9"}': {"rescued": {"_record": '{"a": "Café"}'}},
        b"{}": {},
        b'{"a": 1e-3}': {"a": "1e-3"},
        b'{"a": 0.12345678901234567890}': {"a": "0.12345678901234567890"},
    }
    landing.drop("a.json", b"\n".join(lines))
    landing.drop("empty.json", b"")
    run_once(landing.table("json", schema="a STRING, b STRING", new_columns="rescue"))
    rows = landing.rows()["a.json"]
    assert rows == [row for row in lines.values() if row is not None]


def test_a_file_that_cannot_be_read_stops_no_other_and_is_named_once(landing, run_once, fails):
    good = as_parquet(a=[1, 2])
    landing.drop("good.parquet", good)
    landing.drop("cut.parquet", good[:-10])
    landing.drop("none.parquet", b"")
    # The footer is intact, but the data before it is not.
    landing.drop("rotten.parquet", good[:4] + bytes(40) + good[44:])
    table = landing.table("parquet")
    fails(run_once, table)
    expected = [(f"{name}.parquet", "unreadable") for name in ("cut", "none", "rotten")]
    assert landing.quarantined() == expected
    run_once(table)
    landing.drop("later.parquet", as_parquet(a=[3]))
    run_once(table)
    assert landing.rows() == {"good.parquet": [{"a": 1}, {"a": 2}], "later.parquet": [{"a": 3}]}
    assert landing.quarantined() == expected


def test_a_good_file_that_fails_once_beside_a_broken_one_is_in_the_table(landing, run_once, monkeypatch):
    good = as_parquet(a=[1, 2])
    landing.drop("good.parquet", good)
    # Within a compressed page, which only a reader of its values sees.
    end = good.rindex(b"PAR1") - int.from_bytes(good[-8:-4], "little") - 4
    landing.drop("rotten.parquet", good[: end - 8] + b"\xff" * 8 + good[end:])
    original_read, failed_headers = batch_of_files.read, []

    def fail_once(spark, table, headers, *arguments):
        if [Path(header.path).name for header in headers] == ["good.parquet"] and not failed_headers:
            failed_headers.append(headers)
            raise PySparkException("a task was lost")
        return original_read(spark, table, headers, *arguments)

    monkeypatch.setattr(batch_of_files, "read", fail_once)
    run_once(landing.table("parquet"))
    assert failed_headers
    assert landing.rows() == {"good.parquet": [{"a": 1}, {"a": 2}]}
    assert landing.quarantined() == [("rotten.parquet", "unreadable")]


@pytest.mark.parametrize("format_", ["orc", "avro"])
def test_orc_and_avro_files_keep_their_types_and_gain_columns(landing, run_once, spark, tmp_path, format_):
    def drop(name: str, rows: str) -> bytes:
        frame = spark.sql(f"SELECT * FROM VALUES {rows}").coalesce(1)
        frame.write.format(format_).save(str(tmp_path / name))
        [file] = (tmp_path / name).glob("part-*")
        landing.drop(f"{name}.{format_}", file.read_bytes())
        return file.read_bytes()

    whole = drop("first", "(1, CAST(1.50 AS DECIMAL(10,2))), (2, NULL) AS t(a, price)")
    landing.drop(f"cut.{format_}", whole[: len(whole) // 2])
    landing.drop(f"text.{format_}", b"a,price")
    table = landing.table(format_)
    run_once(table)
    price = Decimal("1.50")
    assert landing.rows() == {f"first.{format_}": [{"a": 1, "price": price}, {"a": 2}]}
    assert landing.quarantined() == [(f"cut.{format_}", "unreadable"), (f"text.{format_}", "unreadable")]
    drop("second", "(3, CAST(2.00 AS DECIMAL(10,2)), TIMESTAMP '2026-01-02T03:04:05Z') AS t(a, price, at)")
    run_once(table)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert landing.rows()[f"second.{format_}"] == [{"a": 3, "price": Decimal("2.00"), "at": at}]
    verify.verify(table)


def test_each_line_of_text_is_a_row(landing, run_once):
    landing.drop("log.txt", 'first\r\n\nCafé, "2"\nlast'.encode())
    landing.drop("latin.txt", b"Caf\xe9\n")
    landing.drop("none.txt", b"")
    table = landing.table("text")
    run_once(table)
    assert landing.rows() == {
        "log.txt": [{"value": "first"}, {"value": ""}, {"value": 'Café, "2"'}, {"value": "last"}],
        "latin.txt": [{"rescued": {"_record": "Café"}}],
    }
    assert landing.quarantined() == [("none.txt", "empty")]
    verify.verify(table)


def test_a_file_that_changes_or_vanishes_is_named_and_never_read_twice(landing, run_once, fails):
    table = landing.table(schema="a STRING", new_columns="rescue")
    for file in ("vanishes.csv", "changes.csv", "stays.csv"):
        landing.drop(file, "a\n1\n", OLD_DATE)
    fails(run_once, table)
    (landing.folder / "vanishes.csv").unlink()
    landing.drop("changes.csv", "a\n1\n2\n")
    run_once(table)
    assert landing.rows() == {"changes.csv": [{"a": "1"}, {"a": "2"}], "stays.csv": [{"a": "1"}]}
    expected = [("changes.csv", "changed"), ("vanishes.csv", "vanished")]
    assert landing.quarantined() == expected
    landing.drop("stays.csv", "a\n1\n3\n")
    for file in ("b.csv", "c.csv"):
        landing.drop(file, "a\n4\n")
        run_once(table)
    assert landing.rows()["stays.csv"] == [{"a": "1"}]
    assert landing.quarantined() == sorted([*expected, ("stays.csv", "changed")])


@only_in_full_runs
def test_a_thousand_files_at_once_and_one_with_an_old_date_are_read_once_each(landing, run_once):
    table = landing.table(max_files=600)
    for number in range(1000):
        landing.drop(f"{number}.csv", f"a\n{number}\n")
    run_once(table)
    landing.drop("late.csv", "a\n-1\n", OLD_DATE)
    assert status.lag(table) == "1 files"
    run_once(table)
    assert landing.rows() == {f"{number}.csv": [{"a": str(number)}] for number in range(1000)} | {
        "late.csv": [{"a": "-1"}]
    }
    assert status.lag(table) == "0 files"


@pytest.mark.parametrize("is_log_left", [pytest.param(True, marks=only_in_full_runs), False])
def test_a_reset_reads_what_came_since_and_nothing_again(landing, run_once, fails, is_log_left):
    table = landing.table("parquet")
    odd_name = "a b*[c]{d}?%20+\u00e9#.parquet"
    landing.drop("a.parquet", as_parquet(a=[1]))
    landing.drop("cut.parquet", b"")
    landing.drop(odd_name, as_parquet(a=[2]))
    run_once(table)
    landing.drop("planned.parquet", as_parquet(a=[3]))
    landing.drop("empty.parquet", b"")
    fails(run_once, table)
    if not is_log_left:
        remove_tree(locations.checkpoints(table.name) / "1")
    landing.drop("new.parquet", as_parquet(a=[4]))
    commands.execute(
        database.connect(settings().control_url), Command(Action.RESET_CHECKPOINT, (table.name,), "test", "a test")
    )
    run_once(table)
    run_once(table)
    values = {"a.parquet": 1, odd_name: 2, "planned.parquet": 3, "new.parquet": 4}
    assert landing.rows() == {file: [{"a": value}] for file, value in values.items()}
    assert landing.quarantined() == [("cut.parquet", "unreadable"), ("empty.parquet", "unreadable")]


def test_a_checkpoint_whose_log_of_files_was_cut_short_is_refused(landing, run_once):
    table = landing.table()
    landing.drop("a.csv", "a\n1\n")
    run_once(table)
    log = locations.checkpoints(table.name) / "1" / "sources" / "0"
    for log_text, sentence in (("", "it was cut short"), (None, "ends before what the batches have read")):
        for file in (log / "0", log / ".0.crc"):
            file.unlink(missing_ok=True)
        if log_text is not None:
            (log / "0").write_text(log_text)
        with pytest.raises(FlowBroken, match=sentence) as exception:
            run_once(table)
        assert exception.value.error == "CHECKPOINT_DAMAGED"


FIRST_FILE, SECOND_FILE = {"a": ["1"], "b": ["2"]}, {"b": ["3"], "C": ["4"]}
WRITERS = {
    "csv": lambda columns: "\n".join(",".join(row) for row in (columns, *zip(*columns.values(), strict=True))),
    "json": lambda columns: json.dumps({name: values[0] for name, values in columns.items()}),
    "parquet": lambda columns: as_parquet(**columns),
}
SECOND_ROW = {
    "add": {"b": "3", "C": "4"},
    "rescue": {"b": "3", "rescued": {"C": "4"}},
    "ignore": {"b": "3"},
    "fail": None,
}


@only_in_full_runs
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_a_new_column_is_added_rescued_ignored_or_fails_the_flow_as_declared(landing, run_once, format):
    for mode, row in SECOND_ROW.items():
        mode_landing = Landing(f"{landing.name}_{mode}")
        table = mode_landing.table(format, new_columns=mode)
        mode_landing.drop(f"1.{format}", WRITERS[format](FIRST_FILE))
        run_once(table)
        mode_landing.drop(f"2.{format}", WRITERS[format](SECOND_FILE))
        if row is None:
            with pytest.raises(
                FlowBroken, match=r"file .*2\.\w+: column 'C' is none of the table: add `C STRING`"
            ) as exception:
                run_once(table)
            assert exception.value.error == "NEW_COLUMN"
            run_once(mode_landing.table(format, new_columns="add"))
            row = SECOND_ROW["add"]
        else:
            run_once(table)
        assert mode_landing.rows() == {f"1.{format}": [{"a": "1", "b": "2"}], f"2.{format}": [row]}


@only_in_full_runs
def test_a_parquet_column_of_another_type_is_rescued_and_a_narrower_one_fits(landing, run_once):
    day = datetime(2026, 3, 1, tzinfo=UTC)
    columns = {"n": [2**40], "t": [day], "s": [{"x": 1}], "l": [[1, 2]], "b": [b"\x00\xff"]}
    landing.drop("1.parquet", as_parquet(**columns))
    run_once(landing.table("parquet"))
    other_columns = {"n": pa.array([7], pa.int32()), "t": ["soon"], "s": [{"y": 2}], "l": [["a"]], "b": [b"\x01"]}
    landing.drop("2.parquet", as_parquet(**other_columns))
    landing.drop("3.parquet", as_parquet(n=pa.array([1.5]), nanos=pa.array([5], pa.timestamp("ns"))))
    landing.drop("4.parquet", as_parquet(clock=pa.array([1], pa.time64("us"))))
    run_once(landing.table("parquet"))
    rows = landing.rows()
    assert rows["1.parquet"] == [{name: values[0] for name, values in columns.items()}]
    rescued_values = {"t": "soon", "s": {"y": 2}, "l": ["a"]}
    assert rows["2.parquet"] == [{"n": 7, "b": b"\x01", "rescued": rescued_values}]
    assert rows["3.parquet"] == [{"nanos": datetime(1970, 1, 1, tzinfo=UTC), "rescued": {"n": 1.5, "nanos": 5}}]
    assert rows["4.parquet"] == [{"rescued": {"clock": "00:00:00.000001"}}]


def silver(landing: Landing, **parse) -> Table:
    return Flow(
        name=f"silver.{landing.name}",
        comment="typed",
        source=Delta(f"bronze.{landing.name}"),
        parse=Cast(into=("day", "amount"), **parse),
        schema="day DATE, amount DECIMAL(10,2), _filename STRING, _index BIGINT, "
        "_errors ARRAY<STRUCT<field: STRING, message: STRING>>",
        write=Append(),
    )


@only_in_full_runs
def test_text_that_cannot_be_cast_is_named_or_ends_the_flow_as_declared(landing, run_once, stored):
    landing.drop("a.csv", 'day,amount\n2019-08-04,1.5\n2019-08-05,\nsoon,"1,5"\n')
    run_once(landing.table(), silver(landing))
    silver_frame = stored(f"silver.{landing.name}").orderBy("_index")
    assert [tuple(map(str, row)) for row in silver_frame.select("day", "amount").collect()] == [
        ("2019-08-04", "1.50"),
        ("2019-08-05", "None"),
        ("None", "None"),
    ]
    errors = [[tuple(error) for error in row["_errors"]] for row in silver_frame.collect()]
    assert errors == [[], [], [("day", "'soon' is no DATE"), ("amount", "'1,5' is no DECIMAL(10,2)")]]
    strict_silver = silver(landing, fails=True)
    landing.drop("b.csv", "day,amount\n2019-08-04,1\n2019-08-05,a lot\n")
    with pytest.raises(
        FlowBroken, match=r"_filename b\.csv, _index 1, field amount: 'a lot' is no DECIMAL\(10,2\)"
    ) as exception:
        run_once(landing.table(), strict_silver)
    assert exception.value.error == "USER_RAISED_EXCEPTION"
    run_once(silver(landing))
    assert stored(f"silver.{landing.name}").count() == 5


def test_a_stream_that_reads_the_table_goes_on_at_once_after_a_new_column(landing, run_once, spark, monkeypatch, name):
    bronze, silver_table = landing.table(), silver(landing)
    landing.drop("a.csv", "day,amount\n2019-08-04,1\n")
    run_once(bronze)
    # Unsupervised, so that a failure of the flow ends it.
    driver = Driver(spark, name, (silver_table,), is_supervised=False)
    monkeypatch.setattr(catalog, "reload", lambda: Catalog(driver.tables))
    driver.start()
    try:
        wait_for_rows(silver_table, 1)
        landing.drop("b.csv", "day,amount,shop\n2019-08-05,2,x\n")
        run_once(bronze)
        wait_for_rows(silver_table, 2)
    finally:
        driver.end()
    assert driver.error is None
    assert sorted(row["_filename"] for row in rows_of(silver_table.name)) == ["a.csv", "b.csv"]


def test_a_folder_of_its_own_that_is_not_there_is_waited_for(landing, run_once, tmp_path):
    table = landing.table()
    mounted_landing = Landing(str(tmp_path / "mounted"))
    mounted_table = Flow(name=table.name, comment="", source=mounted_landing.table().source)
    with pytest.raises(Unreachable, match="mount it, or create it"):
        run_once(mounted_table)
    Path(tmp_path / "mounted").mkdir()
    mounted_landing.drop("a.csv", "a\n1\n")
    run_once(mounted_table)
    assert landing.rows() == {"a.csv": [{"a": "1"}]}


@only_in_full_runs
def test_every_read_of_a_file_is_of_the_batch_that_planned_it(landing, run_once, monkeypatch):
    """A file that arrives between the plan and the read waits for the next batch."""
    table = landing.table(max_files=1)
    for number in range(3):
        landing.drop(f"{number}.csv", f"a\n{number}\n")
    batch_sizes = []
    original_read = batch_of_files.read

    def read_and_count(spark, table, headers):
        batch_sizes.append(len(headers))
        return original_read(spark, table, headers)

    monkeypatch.setattr(batch_of_files, "read", read_and_count)
    run_once(table)
    assert batch_sizes == [1, 1, 1]
    assert sum(len(rows) for rows in landing.rows().values()) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(landing, run_once):
    landing.drop("a.csv", "a\n1\n").chmod(0)
    run_once(landing.table())
    assert landing.quarantined() == [("a.csv", "unreadable")]
