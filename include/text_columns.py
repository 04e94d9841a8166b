"""Formats text in columns."""

from collections.abc import Sequence


def in_columns(lines: Sequence[tuple[str, ...]], left_columns: int) -> str:
    """Aligns the columns. The first `left_columns` columns are aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if number < left_columns else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def one_line(text: str) -> str:
    """Escapes line breaks and what else a terminal would obey instead of print."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def duration(seconds: float) -> str:
    """Formats a duration in the largest unit of which it has at least two."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"
