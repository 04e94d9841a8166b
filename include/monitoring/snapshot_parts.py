"""The parts of a snapshot, each of which may be unknown without the others."""

from collections.abc import Callable
from typing import TypeVar

Part = TypeVar("Part")


class Parts:
    """unknown: by part that could not be read, why, in words. errors: what makes a part unknown."""

    def __init__(self, *errors: type[Exception]) -> None:
        self.unknown: dict[str, str] = {}
        self._errors = errors

    def look(self, name: str, look: Callable[[], Part]) -> Part | None:
        """Returns the part; None where it cannot be read."""
        try:
            return look()
        except self._errors as error:
            self.unknown[name] = f"{error}" or type(error).__name__
            return None
