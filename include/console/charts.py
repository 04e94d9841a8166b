"""Lines and bands of time, as points of SVG: the server draws, so that a page needs no script to be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

Point = tuple[float, float | None]
SPARK_WIDTH, SPARK_HEIGHT, SPARK_POINTS = 120, 24, 40
WIDTH, HEIGHT, POINTS = 720, 140, 240
TICKS = 6


@dataclass(frozen=True)
class Mark:
    """A moment, such as a restart, or a span of time, such as a window. x, width: in the chart's units."""

    kind: str
    words: str
    x: float
    width: float = 0.0


@dataclass(frozen=True)
class Chart:
    """title: what it shows. lines: by name, the points of a polyline, in pieces where values are missing.

    top: the value at the upper edge. ticks: positions and words of the time axis. newest: the last value of each line.
    """

    title: str
    lines: dict[str, list[str]]
    top: float
    ticks: list[tuple[float, str]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    newest: dict[str, float | None] = field(default_factory=dict)
    unit: str = ""


def sparkline(points: Sequence[Point], begin: float, end: float) -> list[str]:
    """The pieces of a small line without axes."""
    thin = thinned(points, SPARK_POINTS)
    return pieces(thin, begin, end, highest(thin), SPARK_WIDTH, SPARK_HEIGHT - 2)


def chart(title: str, lines: Mapping[str, Sequence[Point]], begin: float, end: float, unit: str = "") -> Chart:
    lines = {name: points for name, points in lines.items() if any(value is not None for _, value in points)}
    thin = {name: thinned(points, POINTS) for name, points in lines.items()}
    top = max((highest(points) for points in thin.values()), default=0.0)
    drawn = {name: pieces(points, begin, end, top, WIDTH, HEIGHT) for name, points in thin.items()}
    newest = {
        name: next((value for _, value in reversed(points) if value is not None), None)
        for name, points in lines.items()
    }
    return Chart(title, drawn, top, ticks(begin, end), newest=newest, unit=unit)


def with_marks(drawn: Chart, marks: Sequence[Mark]) -> Chart:
    return replace(drawn, marks=list(marks))


def mark(kind: str, words: str, begin: float, end: float, at: float, until: float | None = None) -> Mark:
    """The mark of a moment, or of the span that ends at `until`, cut off where the chart ends."""
    seconds = max(1.0, end - begin)
    first = min(max(at, begin), end)
    last = min(max(until or first, first), end)
    return Mark(kind, words, round((first - begin) / seconds * WIDTH, 1), round((last - first) / seconds * WIDTH, 1))


def ticks(begin: float, end: float) -> list[tuple[float, str]]:
    form = "%H:%M" if end - begin <= 2 * 86_400 else "%d %b"
    steps = [begin + (end - begin) * number / TICKS for number in range(TICKS)]
    return [
        (round((at - begin) / max(1.0, end - begin) * WIDTH, 1), f"{datetime.fromtimestamp(at, UTC):{form}}")
        for at in steps
    ]


def highest(points: Sequence[Point]) -> float:
    return max((value for _, value in points if value is not None), default=0.0)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most as many points, each the highest of its neighbours, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    step = len(points) / most
    groups = [points[int(number * step) : int((number + 1) * step)] for number in range(most)]
    return [max(group, key=lambda point: -1.0 if point[1] is None else point[1]) for group in groups if group]


def pieces(points: Sequence[Point], begin: float, end: float, top: float, width: float, height: float) -> list[str]:
    """Polylines of whole pixels: a line has a gap where nothing is known."""
    seconds, found, piece = max(1.0, end - begin), [], []
    for at, value in [*points, (end, None)]:
        if value is not None:
            x = (at - begin) / seconds * width
            piece.append(f"{x:.0f},{height - (value / top * height if top else 0) + 1:.0f}")
        elif piece:
            found.append(" ".join(piece))
            piece = []
    return found
