"""Bronze holds every row and every value of files that Python's csv module writes."""

import csv
import io

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from include.engine.batch import batch_of_files
from include.engine.files import file_headers
from include.engine.tables import create_table
from tests.support.landing import Landing

COLUMNS = ("a", "b", "c")
CELL = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\",\r\n \\\t#'\0\ufeff"), max_size=8)
# An empty cell without quotes becomes NULL.
QUOTING = [csv.QUOTE_ALL, csv.QUOTE_MINIMAL]
ROWS = st.lists(st.tuples(CELL, CELL, CELL), max_size=30)


@pytest.fixture(scope="module")
def landing(spark) -> Landing:
    csv_landing = Landing("written_by_csv")
    create_table.create(spark, csv_landing.table(schema="a STRING, b STRING, c STRING", new_columns="fail"))
    return csv_landing


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROWS, min_size=1, max_size=4), st.sampled_from(QUOTING), st.booleans())
@example([[("a\r\n", "\r\nb", "\r\n\r")]], csv.QUOTE_ALL, False)
def test_every_cell_of_every_file_arrives(spark, landing, sheets, quoting, is_marked):
    paths = []
    for number, rows in enumerate(sheets):
        text = io.StringIO(newline="")
        csv.writer(text, quoting=quoting).writerows([COLUMNS, *rows])
        content = text.getvalue().encode("utf-8-sig" if is_marked else "utf-8")
        paths.append(str(landing.drop(f"{number}.csv", content)))
    table = landing.table(schema="a STRING, b STRING, c STRING", new_columns="fail")
    records = batch_of_files.read(spark, table, file_headers.read_headers(table, paths)).collect()
    cells = {(row["_filename"], row["_index"]): (row["a"], row["b"], row["c"]) for row in records}
    assert len(records) == sum(map(len, sheets))

    def expected_cell(cell: str) -> str | None:
        return cell if cell or quoting == csv.QUOTE_ALL else None

    assert cells == {
        (f"{number}.csv", index): tuple(map(expected_cell, row))
        for number, rows in enumerate(sheets)
        for index, row in enumerate(rows)
    }
    assert all(row["_rescued_data"] is None for row in records)
