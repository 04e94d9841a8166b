"""Names a job in leases, approvals and commands: its kind and number, such as "rewind 3"."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from include.errors import UsageError


class JobKind(StrEnum):
    """The kinds of jobs that the control database lists. A full refresh is a backfill of all rows."""

    WINDOW = "window"
    BACKFILL = "backfill"
    REWIND = "rewind"

    @property
    def command(self) -> str:
        """The command that does such a job in a process of its own."""
        return f"spark-submit jobs/{'maintain' if self is JobKind.WINDOW else self}.py"


@dataclass(frozen=True)
class JobId:
    """number: of the job among those of its kind. A backfill's is its root's, which includes all that follows it."""

    kind: JobKind
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what a person has typed. Raises UsageError."""
        match = re.fullmatch(f"({'|'.join(JobKind)}) ([0-9]{{1,9}})", text)
        if not match:
            raise UsageError(f"job is {text!r}: name it as `sluice jobs` lists it, such as rewind 3")
        return cls(JobKind(match[1]), int(match[2]))


def window(number: int) -> JobId:
    return JobId(JobKind.WINDOW, number)


def backfill(root: int) -> JobId:
    return JobId(JobKind.BACKFILL, root)


def rewind(number: int) -> JobId:
    return JobId(JobKind.REWIND, number)
