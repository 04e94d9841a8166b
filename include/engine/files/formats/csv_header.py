"""Decides whether the first record of a CSV file holds column names, or is data, another format or garbage."""

import csv
import re
from collections import Counter
from collections.abc import Collection, Sequence
from unicodedata import category

from include.spec import ddl

# Longest header in a message.
SHOWN_CHARACTERS = 80
# Characters that divide the columns of most files.
SEPARATORS = ",;\t|"
# The first line of a file that says to Excel what divides the others.
SEPARATOR_LINE = re.compile("sep=.?", re.IGNORECASE)
# The name of a column whose header cell is empty.
UNNAMED = re.compile("_c[0-9]+")
# Unicode categories: control, surrogate, private use and unassigned characters.
UNREADABLE_CATEGORIES = frozenset({"Cc", "Cs", "Co", "Cn"})


def require_names(record: Sequence[str]) -> None:
    """Raises csv.Error if the record holds no readable column names."""
    if not any(cell.strip() for cell in record):
        raise csv.Error("its header names no column")
    if SEPARATOR_LINE.fullmatch(record[0].strip()) and not any(record[1:]):
        raise csv.Error("its first line names a separator, as only Excel reads it: remove the line, declare separator")
    if not all(map(is_readable, record)):
        raise csv.Error(f"its header has characters that cannot be printed: {_shortened(record)}")


def is_readable(name: str) -> bool:
    """Whether a person can read it. Quoted names may span lines, and many scripts use joiners."""
    text = " ".join(name.split())
    return "\N{REPLACEMENT CHARACTER}" not in text and not any(
        category(character) in UNREADABLE_CATEGORIES for character in text
    )


def unrelated(headers: Sequence[Collection[str]], columns: Collection[str]) -> list[int]:
    """Returns the indexes of headers that share no name with the table, nor with a header that does.

    columns: of the table. If it has none yet, the most frequent header counts, and among equals the longest. Names are
    compared without case, and unnamed columns never match. An accepted header adds its names. So a retry, after the
    batch has added columns, accepts the same headers.
    """
    names = [frozenset(ddl.key(name) for name in header if not UNNAMED.fullmatch(name)) for header in headers]
    related_names = {ddl.key(column) for column in columns}
    if not related_names and names:
        frequencies = Counter(names)
        most_frequent = max(frequencies, key=lambda header: (frequencies[header], len(header)))
        related_names = set(most_frequent)
    remaining = list(range(len(names)))
    while accepted := [index for index in remaining if names[index] & related_names]:
        related_names = related_names.union(*(names[index] for index in accepted))
        remaining = [index for index in remaining if index not in accepted]
    return remaining


def separator_reason(header: Sequence[str], columns: Collection[str], separator: str) -> str:
    """Returns a sentence if the header is a single name that another separator would divide; else nothing."""
    [name, *others] = header
    likely = max(SEPARATORS.replace(separator, ""), key=name.count)
    if others or not name.count(likely) or ddl.key(name) in map(ddl.key, columns):
        return ""
    return f"its header {_shortened(header)} is one name: declare separator={likely!r} if that divides its columns"


def unrelated_reason(header: Sequence[str], columns: Collection[str]) -> str:
    """Returns a sentence that says why a file with this header is not read."""
    others = f"the table, which has {', '.join(columns)}" if columns else "the other files that came with it"
    return f"its header {_shortened(header)} has no name in common with {others}"


def _shortened(names: Sequence[str]) -> str:
    return repr(",".join(names))[:SHOWN_CHARACTERS]
