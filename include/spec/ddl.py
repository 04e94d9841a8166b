"""Parses the columns of Spark DDL without Spark: their names and types."""

import re
from collections import Counter
from collections.abc import Iterable

# Skips comments. A token is a string, a quoted name, a bracket, a separator or a word.
TOKEN = re.compile(
    r"""
    --[^\n]* | /\*.*?\*/
    | ( '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`]|``)*` | [<>(),:] | [^\s<>(),:'"`]+ )
    """,
    re.VERBOSE | re.DOTALL,
)


# Words that may follow the type of a column, before the next comma.
AFTER_TYPE = {"NOT", "NULL", "COMMENT", "COLLATE", "DEFAULT", "GENERATED"}
LONG_TYPES = ("INTERVAL", "TIME", "TIMESTAMP")
OF_LONG_TYPES = {"WITH", "WITHOUT", "LOCAL", "TIME", "ZONE", "TO", "YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"}


def types(ddl: str) -> dict[str, str]:
    """By column, the first word of its type, in capitals."""
    return {_name(column[0]): column[1].upper() for column in _columns(ddl) if len(column) > 1}


def columns(ddl: str) -> list[str]:
    """The column names of a schema; "" where the column before or after a comma is missing."""
    return [_name(column[0]) if column else "" for column in _columns(ddl)]


def unquoted(ddl: str) -> list[str]:
    """The column names that are written without backquotes."""
    return [column[0] for column in _columns(ddl) if column and not column[0].startswith("`")]


def without_comma(ddl: str) -> list[tuple[str, str]]:
    """Pairs of columns between which a comma is missing."""
    pairs = []
    for column in _columns(ddl):
        for position, word in enumerate(column[:-1]):
            is_name = position > 1 and word[0] not in "'\"" and column[position - 1].upper() != "COLLATE"
            type_words = OF_LONG_TYPES if column[1].upper() in LONG_TYPES else set()
            if is_name and word.upper() not in AFTER_TYPE | type_words:
                pairs.append((_name(column[0]), _name(word)))
                break
            if word.upper() in ("DEFAULT", "GENERATED"):
                break
    return pairs


def _columns(ddl: str) -> list[list[str]]:
    """The words of each column, without the content of brackets."""
    words: list[list[str]] = [[]]
    depth = 0
    for token in filter(None, TOKEN.findall(ddl)):
        depth -= token in (">", ")")
        if token == "," and depth == 0:
            words.append([])
        elif depth == 0 and token not in (":", "<", "(", ">", ")"):
            words[-1].append(token)
        depth += token in ("<", "(")
    return words


def _name(token: str) -> str:
    return token[1:-1].replace("``", "`") if token.startswith("`") else token


def comments(ddl: str) -> dict[str, str]:
    """By column that has one, its comment."""
    found = {}
    for column in _columns(ddl):
        place = next((index for index, word in enumerate(column[:-1]) if index > 1 and word.upper() == "COMMENT"), None)
        if place is not None:
            found[_name(column[0])] = re.sub(r"\\(.)", r"\1", column[place + 1][1:-1])
    return found


def definitions(ddl: str) -> dict[str, str]:
    """By column, its type as written, without comment and constraints."""
    parts: list[list[str]] = [[]]
    depth, is_type = 0, True
    for token in filter(None, TOKEN.findall(ddl)):
        depth += (token in ("<", "(")) - (token in (">", ")"))
        if token == "," and depth == 0:
            parts.append([])
            is_type = True
        elif token != ":" or depth:
            # A word after the complete type begins the constraints or the comment.
            is_type = is_type and (len(parts[-1]) < 2 or depth > 0 or token in (">", ")"))
            parts[-1] += [token] if is_type else []
    return {_name(column[0]): _join_tokens(column[1:]) for column in parts if len(column) > 1}


def fields(type_: str) -> str | None:
    """Returns the fields of a STRUCT, or of an ARRAY of them, as DDL; None for another type. type_: as `definitions`
    has it.
    """
    match = re.fullmatch(r"(ARRAY|STRUCT)\s*<(.*)>", type_.strip(), re.IGNORECASE | re.DOTALL)
    if not match:
        return None
    return match[2] if match[1].upper() == "STRUCT" else fields(match[2])


def _join_tokens(tokens: list[str]) -> str:
    """Join tokens, with a blank between two words and after a comma or colon."""
    text = ""
    for token in tokens:
        needs_blank = text[-1:] in (",", ":") or (text[-1:] not in ("", "<", "(") and token not in "<(>),:")
        text += f" {token}" if needs_blank else token
    return text


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
