"""Draws the plots of docs/operate/cost.md from the model of benchmarks.cost: python -m benchmarks.cost_plots"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import cost, plots
from benchmarks.cost import Load, Need, Parts
from benchmarks.plots import text
from include.errors import report
from include.settings import ROOT

LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 70, 590, 36, 300, 340
LABEL_HEIGHT = 15
COLOURS = ("#3f7fdb", "#c4612f", "#4a9d6a")


@dataclass(frozen=True)
class Plot:
    """Curves over a logarithmic x axis, each with its label, dashed where nothing was measured.

    measured_to: by label, the greatest x of a measurement. load: by x and label.
    """

    title: str
    x_title: str
    x_range: tuple[float, float]
    measured_to: dict[str, float]
    labels: tuple[str, ...]
    load: Callable[[float, str], Load]
    value: Callable[[Need], float]


def seconds(label: str) -> float:
    return float(label.removeprefix("every ").removesuffix(" s"))


INTERVALS = ("every 2 s", "every 10 s", "every 60 s")
PLOTS = {
    "cost-by-flows": Plot(
        "Cores to buy, by flows that read 1 MB/s together and have a batch each",
        "flows",
        (3, 1_000),
        {"every 2 s": 9},
        INTERVALS,
        lambda flows, label: Load(round(flows), 1, seconds(label)),
        lambda need: need.cores,
    ),
    "cost-by-rate": Plot(
        "Cores to buy, by MB/s of all flows together, with a batch each every 2 s",
        "MB/s",
        (0.1, 1_000),
        {"3 flows": 0.6},
        ("3 flows", "30 flows", "300 flows"),
        lambda megabytes, label: Load(int(label.split()[0]), megabytes),
        lambda need: need.cores,
    ),
    "cost-of-requests": Plot(
        "USD a month for requests to S3, by flows that have a batch each",
        "flows",
        (3, 1_000),
        {},
        INTERVALS,
        lambda flows, label: Load(round(flows), 1, seconds(label)),
        lambda need: need.usd_a_month,
    ),
}


def values(plot: Plot, part: Parts, count: int = 41) -> dict[str, list[tuple[float, float]]]:
    """By label, the points of its curve."""
    first, last = map(math.log10, plot.x_range)
    xs = [10 ** (first + (last - first) * number / (count - 1)) for number in range(count)]
    return {label: [(x, plot.value(cost.need(plot.load(x, label), part))) for x in xs] for label in plot.labels}


def svg(plot: Plot, part: Parts) -> str:
    """The plot, with logarithmic axes."""
    curves = values(plot, part)
    all_values = [value for points in curves.values() for _, value in points]
    lowest, highest = math.floor(math.log10(min(all_values))), math.ceil(math.log10(max(all_values)))
    first, last = map(math.log10, plot.x_range)

    def x_of(x: float) -> float:
        return LEFT + (RIGHT - LEFT) * (math.log10(x) - first) / (last - first)

    def y_of(y: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (math.log10(y) - lowest) / (highest - lowest)

    drawn = [text(0, 16, plot.title, "font-weight='bold'")]
    for power in range(lowest, highest + 1):
        y = y_of(10**power)
        drawn.append(f"<path d='M{LEFT} {y:.1f}H{RIGHT}' stroke='{plots.GREY}' stroke-opacity='.35'/>")
        drawn.append(text(LEFT - 8, y + 4, f"{10**power:,g}", "text-anchor='end'"))
    for x in sorted({plot.x_range[0], *(10**power for power in range(math.ceil(first), math.floor(last) + 1))}):
        drawn.append(text(x_of(x), BOTTOM + 18, f"{x:,g}", "text-anchor='middle'"))
    drawn.append(text((LEFT + RIGHT) / 2, BOTTOM + 36, plot.x_title, "text-anchor='middle'"))
    for colour, (label, points) in zip(COLOURS, curves.items(), strict=True):
        solid = [point for point in points if point[0] <= plot.measured_to.get(label, 0)]
        for part_points, dash in ((solid, ""), (points[max(0, len(solid) - 1) :], " stroke-dasharray='5 4'")):
            if len(part_points) > 1:
                path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in part_points)
                drawn.append(f"<path d='M{path}' fill='none' stroke='{colour}' stroke-width='2'{dash}/>")
    label_y = math.inf
    for label, points in sorted(curves.items(), key=lambda curve: curve[1][-1][1]):
        label_y = min(label_y - LABEL_HEIGHT, y_of(points[-1][1]))
        drawn.append(text(RIGHT + 8, label_y + 4, label))
    return plots.document(plot.title, drawn, HEIGHT)


def main() -> None:
    plots.FOLDER.mkdir(exist_ok=True)
    for name, plot in PLOTS.items():
        file = plots.FOLDER / f"{name}.svg"
        file.write_text(svg(plot, cost.parts()))
        print(file.relative_to(ROOT))


if __name__ == "__main__":
    report(main)
