"""Writes texts, such as paths, into files and command lines that Java programs parse."""

from collections.abc import Iterable


def property_value(text: str) -> str:
    """A value of a properties file, whatever characters it has. Some programs read these files as Latin-1."""
    escaped = text.replace("\\", "\\\\")
    escaped = "".join(character if " " <= character <= "~" else _unicode_escape(character) for character in escaped)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def options(words: Iterable[str]) -> str:
    """Options of a JVM as one text, which Spark splits at blanks outside quotes."""
    return " ".join(_quoted(word) if set(word) & set(" \t\"'\\") else word for word in words)


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unicode_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))
