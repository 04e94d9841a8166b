"""Column names of files: which of them are the same column, and how a table spells them."""

import re
from collections import Counter
from collections.abc import Iterable

# Delta rejects spaces, `,;{}()=`, tabs and line breaks in names; only column mapping, which many readers lack, would
# allow them. Other whitespace looks the same to people.
INVALID = re.compile(r"[\s,;{}()=]+")
COMBINING_DOT = "\u0307"


def stored(name: str) -> str:
    """Returns the name as a table spells it: `Amount_EUR` for `Amount (EUR)`. Empty if nothing is left."""
    inner = re.sub(rf"^{INVALID.pattern}|{INVALID.pattern}$", "", name)
    return INVALID.sub("_", inner)


def key(name: str) -> str:
    """Returns a text that is equal for names of files that are the same column of a table."""
    return folded(stored(name))


def folded(name: str) -> str:
    """Returns a text that is equal for names that Spark finds equal.

    Spark compares names as Java's `equalsIgnoreCase` does, character by character; in places it lowers whole names.
    Names that either way finds equal have the same text: MICRO SIGN and GREEK MU, K and KELVIN SIGN, final sigma.
    """
    # U+0130 is `i` to one way and `i` with a dot above to the other.
    return "".join(map(_fold, name)).replace(f"i{COMBINING_DOT}", "i")


def most_frequent(spellings: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Returns for each key its most frequent spelling, the first among equals. spellings: each with its frequency."""
    frequencies: dict[str, Counter[str]] = {}
    for name, count in spellings:
        frequencies.setdefault(key(name), Counter())[name] += count
    return {key_: counter.most_common(1)[0][0] for key_, counter in frequencies.items()}


def _fold(character: str) -> str:
    """Returns the lower case of the upper case, each of one character as in Java."""
    upper = next((text for text in (character.upper(), character.title()) if len(text) == 1), character)
    return upper.lower()[0]
