"""Files of text of fixed width, the worked example of docs/guides/add-a-format.md."""

import json
import re

from pyspark.sql import SparkSession

from include.engine.batch import batch_of_files
from include.engine.files import file_headers
from include.engine.tables import create_table
from tests.conftest import ROOT
from tests.support.landing import Landing

WIDTHS = {"account": 6, "amount": 8, "note": 5}
PAGE = ROOT / "docs/guides/add-a-format.md"
SHOWN = re.compile(r"`((?:include|tests)/[\w/]+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)


def test_each_line_becomes_a_row_and_what_fits_no_column_is_rescued(spark: SparkSession):
    landing = Landing("statements")
    table = landing.table("fixed_width", schema="account STRING, amount STRING", new_columns="rescue", widths=WIDTHS)
    create_table.create(spark, table)
    lines = [
        b"A00001   12.50rent \r",
        b"",
        "Zo\u00eb    1000000 caf\u00e9 ".encode(),
        b"A00002",
        b"A00003       1     and more",
        b"A\xff0004       2",
        b"      ",
    ]
    path = landing.drop("a.txt", b"\n".join(lines))
    empty = landing.drop("b.txt", b"")
    heads = file_headers.read_headers(table, [str(path), str(empty)])
    assert [head.problem for head in heads] == ["", "it is empty"]
    rows = batch_of_files.read(spark, table, heads[:1]).orderBy("_index").collect()
    assert [
        (row["_index"], row["account"], row["amount"], json.loads(row["_rescued_data"] or "{}")) for row in rows
    ] == [
        (0, "A00001", "12.50", {"note": "rent"}),
        (1, "Zo\u00eb", "1000000", {"note": "caf\u00e9"}),
        (2, "A00002", None, {}),
        (3, "A00003", "1", {"_record": "A00003       1     and more"}),
        (4, None, None, {"_record": "A\u00ff0004       2"}),
    ]


def test_the_page_shows_the_code_as_it_is():
    shown = SHOWN.findall(PAGE.read_text())
    assert len(shown) == 4
    for path, code in shown:
        assert code.strip() in (ROOT / path).read_text(), path
