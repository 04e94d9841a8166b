"""Reads as much of Spark's DDL as a catalog needs that must work without Spark: the names of the columns."""

import re

# Comments are skipped; strings, quoted names, brackets, separators and words are one token each.
TOKEN = re.compile(
    r"""
    --[^\n]* | /\*.*?\*/
    | ( '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`]|``)*` | [<>(),:] | [^\s<>(),:'"`]+ )
    """,
    re.VERBOSE | re.DOTALL,
)


# What may stand between a column's type and the next comma.
AFTER_TYPE = {"NOT", "NULL", "COMMENT", "COLLATE", "DEFAULT", "GENERATED"}
LONG_TYPES = ("INTERVAL", "TIME", "TIMESTAMP")
OF_LONG_TYPES = {"WITH", "WITHOUT", "LOCAL", "TIME", "ZONE", "TO", "YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"}


def types(ddl: str) -> dict[str, str]:
    """By column, the word its type begins with, in capitals."""
    return {_name(column[0]): column[1].upper() for column in _columns(ddl) if len(column) > 1}


def columns(ddl: str) -> list[str]:
    """Column names of a schema, "" where a comma has no column before or after it."""
    return [_name(column[0]) if column else "" for column in _columns(ddl)]


def unquoted(ddl: str) -> list[str]:
    """The names that stand there without backquotes."""
    return [column[0] for column in _columns(ddl) if column and not column[0].startswith("`")]


def without_comma(ddl: str) -> list[tuple[str, str]]:
    """Two columns each, between which a comma is missing."""
    found = []
    for column in _columns(ddl):
        for position, word in enumerate(column[:-1]):
            is_name = position > 1 and word[0] not in "'\"" and column[position - 1].upper() != "COLLATE"
            of_type = OF_LONG_TYPES if column[1].upper() in LONG_TYPES else set()
            if is_name and word.upper() not in AFTER_TYPE | of_type:
                found.append((_name(column[0]), _name(word)))
                break
            if word.upper() in ("DEFAULT", "GENERATED"):
                break
    return found


def _columns(ddl: str) -> list[list[str]]:
    """The words of each column, without what stands in brackets."""
    found: list[list[str]] = [[]]
    depth = 0
    for token in filter(None, TOKEN.findall(ddl)):
        depth -= token in (">", ")")
        if token == "," and depth == 0:
            found.append([])
        elif depth == 0 and token not in (":", "<", "(", ">", ")"):
            found[-1].append(token)
        depth += token in ("<", "(")
    return found


def _name(token: str) -> str:
    return token[1:-1].replace("``", "`") if token.startswith("`") else token


def definitions(ddl: str) -> dict[str, str]:
    """By column, its type as it is written, without comment and constraints."""
    parts: list[list[str]] = [[]]
    depth, is_type = 0, True
    for token in filter(None, TOKEN.findall(ddl)):
        depth += (token in ("<", "(")) - (token in (">", ")"))
        if token == "," and depth == 0:
            parts.append([])
            is_type = True
        elif token != ":" or depth:
            # A word after the whole type begins what else is said of the column.
            is_type = is_type and (len(parts[-1]) < 2 or depth > 0 or token in (">", ")"))
            parts[-1] += [token] if is_type else []
    return {_name(column[0]): _joined(column[1:]) for column in parts if len(column) > 1}


def _joined(tokens: list[str]) -> str:
    """Two words have a blank between them, and so has what follows a comma or colon."""
    text = ""
    for token in tokens:
        is_apart = text[-1:] in (",", ":") or (text[-1:] not in ("", "<", "(") and token not in "<(>),:")
        text += f" {token}" if is_apart else token
    return text
