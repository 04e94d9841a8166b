"""The plots and tables of the documentation show the figures that the last runs of the benchmarks wrote."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import cost_plots, plots
from benchmarks.support import measure
from benchmarks.support.measure import Figure, Row
from include.errors import UsageError
from tests.conftest import ROOT

PAGES = ROOT / "docs" / "project"
ROWS = plots.read(plots.FIGURES)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_plot_is_drawn_from_the_figures_and_is_on_the_page(name: str):
    drawn = (plots.FOLDER / f"{name}.svg").read_text()
    assert drawn == plots.svg(plots.PLOTS[name], ROWS), "python -m benchmarks.plots draws it"
    assert f"(../images/plots/{name}.svg)" in (PAGES / "benchmarks.md").read_text()


def test_no_plot_is_left_that_nothing_draws():
    assert {file.stem for file in plots.FOLDER.iterdir()} == {*plots.PLOTS, *cost_plots.PLOTS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.what}, {row.unit}")
def test_the_page_of_figures_has_each_figure(row: Row):
    numbers = re.findall(r"\d[\d,]*(?:\.\d+)?", (PAGES / "benchmark-figures.md").read_text())
    shown = {float(number.replace(",", "")) for number in numbers}
    assert {figure.median for figure in row.figures.values()} - shown == set()
    assert row.date in (PAGES / "benchmark-figures.md").read_text()


def test_a_bar_is_as_long_as_its_value():
    rows = [
        Row("fast", "s", {"stock": Figure((8.0,)), "sluice": Figure((2.0,))}),
        Row("slow", "s", {"sluice": Figure((4.0,)), "stock": Figure((1.0,))}),
    ]
    plot = plots.Plot("a < b", "s", {"one": "fast", "two": "slow"})
    drawn = ElementTree.fromstring(plots.svg(plot, rows))
    widths = [float(bar.attrib["width"]) for bar in drawn.iter(f"{SVG}rect")]
    longest = plots.BARS_END - plots.NAMES_END
    assert widths == pytest.approx([longest / 4, longest, longest / 2, longest / 8], abs=0.1)
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert texts == ["a < b", "one", "Sluice", "2", "stock Spark and Delta", "8", "two", "Sluice", "4"] + texts[-2:]
    # Neither is seen on a dark page and a light one alike.
    assert {text.attrib["fill"] for text in drawn.iter(f"{SVG}text")} == {"currentColor"}


def test_the_file_of_a_run_gives_the_rows_back():
    rows = [Row("batch", "CPU-s", {"sluice": Figure((0.5, 0.7), is_flagged=True)}, date="2026-11-25")]
    assert measure.from_json(measure.to_json(rows)) == rows


def test_a_newer_run_replaces_what_it_measured_and_leaves_the_rest():
    before = [Row("a", "s", {"sluice": Figure((1,))}), Row("b", "s", {"sluice": Figure((1,))})]
    newer = Row("a", "s", {"sluice": Figure((2,))})
    assert plots.merged(before, [newer]) == [newer, before[1]]


def test_a_plot_shows_the_newest_run_of_a_benchmark():
    rows = [
        Row("bulk, 3 records", "s", {"sluice": Figure((3,))}, date="2026-11-26"),
        Row("bulk, 2 records", "s", {"sluice": Figure((2,))}, date="2026-11-25"),
    ]
    assert plots.bars(plots.Plot("", "s", {"bulk": "bulk, "}), rows) == {"bulk": {"Sluice": 3}}


def test_a_plot_without_figures_says_what_is_missing():
    with pytest.raises(UsageError, match=r"has no row in s of 'bulk, ': run make bench, and add what it wrote"):
        plots.bars(plots.Plot("", "s", {"bulk": "bulk, "}), [])


def test_a_file_that_is_none_of_figures_is_refused(tmp_path):
    (tmp_path / "rows.json").write_text('{"rows": []}')
    with pytest.raises(UsageError, match="rows.json is no file of figures"):
        plots.read(tmp_path / "rows.json")
