"""Draws the plots of docs/project/benchmarks.md: python -m benchmarks.plots [RESULTS]

RESULTS: what `make bench` wrote, `$SLUICE_HOME/benchmarks.json`. Its rows replace those of earlier runs in
benchmarks/figures.json, from which the plots are drawn.
"""

import argparse
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.support import measure
from benchmarks.support.measure import OURS, Row
from include.errors import UsageError, report
from include.settings import ROOT

FIGURES = ROOT / "benchmarks" / "figures.json"
FOLDER = ROOT / "docs" / "images" / "plots"
NAMES = {
    OURS: "Sluice",
    "stock": "stock Spark and Delta",
    "stock, three jobs": "three stock jobs",
    "the other checkout": "Sluice at e1b19fd",
}
WIDTH, NAMES_END, BARS_END, LINE = 720, 210, 620, 22
# A viewer shows an SVG file in the colours of its own theme. `docs/site.css` sets the colour within a page of the site.
STYLE = ".plot{color:#1f2328}@media(prefers-color-scheme:dark){.plot{color:#e6edf3}}"
BLUE, GREY = "#3f7fdb", "#8a929d"


@dataclass(frozen=True)
class Plot:
    """Bars of one unit. groups: by its heading, how the text of the measured row begins."""

    title: str
    unit: str
    groups: dict[str, str]


RATES = {f"{rate} events a second": f"trackers alone at {rate} events/s" for rate in ("20", "500", "5,000")}
LAYERS = ("bronze", "silver", "gold")
PLOTS = {
    "produce-to-gold": Plot(
        "From produce to gold, 95 of 100 rows: seconds",
        "s",
        {name: f"{what}: produce to gold, p95" for name, what in RATES.items()},
    ),
    "cpu-a-minute": Plot("CPU while rows flow to gold: seconds a minute", "CPU-s a minute", RATES),
    "small-batches": Plot(
        "CPU of a batch of 100 rows: seconds", "CPU-s", {layer: f"{layer}: batch of 100 rows, warm" for layer in LAYERS}
    ),
    "in-bulk": Plot(
        "CPU of a million records: seconds",
        "CPU-s per million",
        {"Kafka to bronze": "Kafka to bronze, ", "Kafka to gold": "Kafka to gold, "},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, help="what make bench wrote; without it, only draw")
    arguments = parser.parse_args()
    if arguments.results:
        FIGURES.write_text(measure.to_json(merged(read(FIGURES), read(arguments.results))))
    FOLDER.mkdir(exist_ok=True)
    rows = read(FIGURES)
    for name, plot in PLOTS.items():
        (FOLDER / f"{name}.svg").write_text(svg(plot, rows))
        print((FOLDER / f"{name}.svg").relative_to(ROOT))


def read(file: Path) -> list[Row]:
    try:
        return measure.from_json(file.read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is no file of figures ({error!r}): name one that make bench wrote") from error


def merged(before: list[Row], newer: list[Row]) -> list[Row]:
    """The rows of both, and of what both measured the newer one."""
    rows = {(row.what, row.unit): row for row in before}
    return list((rows | {(row.what, row.unit): row for row in newer}).values())


def bars(plot: Plot, rows: list[Row]) -> dict[str, dict[str, float]]:
    """By heading, the value of each system, ours first."""
    return {heading: _values(plot, rows, beginning) for heading, beginning in plot.groups.items()}


def _values(plot: Plot, rows: list[Row], beginning: str) -> dict[str, float]:
    matching = [row for row in rows if row.unit == plot.unit and row.what.startswith(beginning)]
    if not matching:
        raise UsageError(f"{FIGURES} has no row in {plot.unit} of '{beginning}': run make bench, and add what it wrote")
    figures = sorted(matching, key=lambda row: row.date)[-1].figures
    return {NAMES.get(name, name): figures[name].median for name in sorted(figures, key=lambda name: name != OURS)}


def svg(plot: Plot, rows: list[Row]) -> str:
    """The plot on one line, as a page of Markdown takes it. Its text has the colour of its surroundings."""
    groups = bars(plot, rows)
    greatest = max(value for values in groups.values() for value in values.values())
    drawn, y = [text(0, 16, plot.title, "font-weight='bold'")], 16
    for heading, values in groups.items():
        y += LINE + 8
        drawn.append(text(0, y, heading, "font-style='italic'"))
        for name, value in values.items():
            y += LINE
            width = (BARS_END - NAMES_END) * value / greatest
            colour = BLUE if name == NAMES[OURS] else GREY
            drawn.append(text(NAMES_END - 8, y, name, "text-anchor='end'"))
            drawn.append(f"<rect x='{NAMES_END}' y='{y - 12}' width='{width:.1f}' height='15' fill='{colour}'/>")
            drawn.append(text(NAMES_END + width + 6, y, f"{value:,.3g}"))
    return document(plot.title, drawn, y + 10)


def document(title: str, drawn: list[str], height: float) -> str:
    return (
        f"<svg class='plot' xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' width='{WIDTH}' "
        f"role='img' font-family='Arial, Liberation Sans, sans-serif' font-size='13'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style>{''.join(drawn)}</svg>\n"
    )


def text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}' fill='currentColor' {attributes}>{escape(words)}</text>"


if __name__ == "__main__":
    report(main)
