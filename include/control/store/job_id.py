"""Names a job in leases, approvals and commands: its kind and number, such as "rewind 3"."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from include.errors import UsageError


class JobKind(StrEnum):
    """The kinds that code without a JVM tells apart. A full refresh is a backfill of all rows.

    A class of `include.engine.jobs` may add others, by any name.
    """

    WINDOW = "window"
    BACKFILL = "backfill"
    REWIND = "rewind"
    REFRESH = "refresh"
    REPLAY = "replay"


@dataclass(frozen=True)
class JobId:
    """number: of the job among those of its kind. A backfill's is its root's, which includes all that follows it."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what a person has typed. Raises UsageError."""
        match = re.fullmatch("([a-z]+) ([0-9]{1,9})", text)
        if not match:
            raise UsageError(f"job is {text!r}: name it as `sluice jobs` lists it, such as rewind 3")
        return cls(match[1], int(match[2]))


def window(number: int) -> JobId:
    return JobId(JobKind.WINDOW, number)


def backfill(root: int) -> JobId:
    return JobId(JobKind.BACKFILL, root)


def rewind(number: int) -> JobId:
    return JobId(JobKind.REWIND, number)
