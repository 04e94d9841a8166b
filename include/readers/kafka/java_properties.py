"""Reads Java properties files, as `java.util.Properties` does."""

import re
from collections.abc import Iterator

# A separator is the first unescaped `=`, `:` or blank. Blanks around it do not count.
ENTRY = re.compile(r"((?:[^\\=:\s]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
CONTROL_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """Returns the values by key. The last one counts where a key is repeated."""
    properties = {}
    for line in _logical_lines(text):
        entry = ENTRY.fullmatch(line)
        assert entry, "both groups may be empty"
        properties[_unescape(entry[1])] = _unescape(entry[2])
    return properties


def format_entry(key: str, value: str) -> str:
    """Returns the line that `parse` and Java read as this entry. The key has no special character."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    escaped = re.sub(r"[^\x00-\x7e]", lambda match: "".join(f"\\u{unit:04x}" for unit in _utf16(match[0])), escaped)
    # Leading blanks would not count.
    return f"{key}=\\{escaped}" if escaped[:1] in (" ", "\t", "\f") else f"{key}={escaped}"


def _utf16(character: str) -> list[int]:
    encoded = character.encode("utf-16-be")
    return [int.from_bytes(encoded[start : start + 2]) for start in range(0, len(encoded), 2)]


def _logical_lines(text: str) -> Iterator[str]:
    """Yields the lines with entries. A line that ends in an odd number of backslashes goes on in the next one."""
    begun = ""
    for natural_line in re.split(r"\r\n|\n|\r", text):
        line = natural_line.lstrip(" \t\f")
        if not begun and (not line or line[0] in "#!"):
            continue
        begun += line
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield begun
        begun = ""
    if begun:
        yield begun


def _unescape(text: str) -> str:
    unescaped = ESCAPE.sub(
        lambda match: chr(int(match[1][1:], 16)) if len(match[1]) > 1 else CONTROL_CHARACTERS.get(match[1], match[1]),
        text,
    )
    # Two escapes stand for one character outside the Basic Multilingual Plane.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
