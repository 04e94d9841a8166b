"""Whether the first record of a CSV file can be the names of its columns, or is a row, another format or garbage."""

import csv
import re
from collections import Counter
from collections.abc import Collection, Sequence
from unicodedata import category

# What shows a name in a message, at most.
SHOWN_CHARACTERS = 80
# What a column is called whose cell in the header is empty.
NAMELESS = re.compile("_c[0-9]+")
# Control characters, halves of pairs, and what Unicode leaves to others or has not assigned.
UNREADABLE = frozenset({"Cc", "Cs", "Co", "Cn"})


def require_names(record: Sequence[str]) -> None:
    """Raises csv.Error where no person would read the names of columns in it."""
    if not any(cell.strip() for cell in record):
        raise csv.Error("its header names no column")
    if not all(map(is_readable, record)):
        raise csv.Error(f"its header has characters that cannot be printed: {_shown(record)}")


def is_readable(name: str) -> bool:
    """Whether a person can read it. A quoted name may go over several lines, and joiners belong to many scripts."""
    text = " ".join(name.split())
    return "\N{REPLACEMENT CHARACTER}" not in text and not any(category(character) in UNREADABLE for character in text)


def strangers(headers: Sequence[Collection[str]], columns: Collection[str]) -> list[int]:
    """The places of the headers that share no name with the table, nor with a header that does.

    columns: of the table; where it has none yet, the most frequent header counts for it, of several the one with the
    most names. Capitals make no difference, and a column without a name has nothing in common with another.
    A header that is accepted adds its names. So a batch that is tried again, after it has added columns to the table,
    accepts the same ones.
    """
    names = [frozenset(name.lower() for name in header if not NAMELESS.fullmatch(name)) for header in headers]
    known = {column.lower() for column in columns}
    if not known and names:
        often = Counter(names)
        known = set(max(often, key=lambda header: (often[header], len(header))))
    left = list(range(len(names)))
    while accepted := [place for place in left if names[place] & known]:
        known = known.union(*(names[place] for place in accepted))
        left = [place for place in left if place not in accepted]
    return left


def stranger(header: Sequence[str], columns: Collection[str]) -> str:
    """Why a file with this header is not read, in a sentence."""
    known = f"the table, which has {', '.join(columns)}" if columns else "the other files that came with it"
    return f"its header {_shown(header)} has no name in common with {known}"


def _shown(names: Sequence[str]) -> str:
    return repr(",".join(names))[:SHOWN_CHARACTERS]
