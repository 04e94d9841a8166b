"""Numbers, times and names as the pages write them."""

from datetime import UTC, datetime
from urllib.parse import quote

from include.console import states
from include.text_columns import duration

UNKNOWN = "?"
# What a button does to its flow.
EFFECTS = {
    "restart": "The flow ends after its current batch and starts again, with the table file as it is then.",
    "stop": "The flow ends after its current batch, and stays stopped until somebody starts it.",
    "start": "The flow runs again.",
    "drain": "The flow reads what its source holds now, and then stops.",
    "acknowledge": "No message and no red task of it for 24 hours, unless it changes.",
    "reset checkpoint": "The flow gets a new checkpoint, and goes on where its table ends. What the table holds stays. "
    "It waits for an approval.",
    "accept data loss": "The flow goes on after the records that are gone. It waits for an approval.",
}
THOUSANDS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(number: float | None) -> str:
    """At most four digits, as a column of the board has room for."""
    if number is None:
        return UNKNOWN
    for size, letter in THOUSANDS:
        if number >= 10 * size:
            return f"{number / size:,.0f} {letter}"
    return f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:.1f}"


def size(number_of_bytes: float | None) -> str:
    if number_of_bytes is None:
        return UNKNOWN
    for unit_bytes, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number_of_bytes >= unit_bytes:
            return f"{number_of_bytes / unit_bytes:,.1f} {unit}"
    return f"{number_of_bytes:,.0f} B"


def span(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else duration(seconds)


def moment(at: float | None) -> str:
    """A time of a day in UTC, to the second."""
    return UNKNOWN if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"


def clock(at: float | None) -> str:
    return UNKNOWN if at is None else f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}Z"


def in_url(name: str) -> str:
    return quote(name, safe="")


def effect(action: str) -> str:
    return EFFECTS[action]


FILTERS = {
    "effect": effect,
    "count": count,
    "size": size,
    "span": span,
    "moment": moment,
    "clock": clock,
    "in_url": in_url,
    "severity": states.css_class,
    "sign": states.sign,
}
