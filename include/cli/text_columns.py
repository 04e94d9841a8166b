"""Words and numbers for people, in columns."""

from collections.abc import Sequence


def in_columns(lines: Sequence[tuple[str, ...]], is_left: int) -> str:
    """is_left: so many columns begin at the left; the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if number < is_left else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def duration(seconds: float) -> str:
    """In the largest unit of which there are two."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"
