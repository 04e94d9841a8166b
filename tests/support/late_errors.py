"""Errors after success: a call that touches a file, the broker or the JVM does its work, and then fails.

A profile function sees each call of this thread when it returns. So no call has to be named one by one, and one that
the engine begins to make tomorrow is among them.
"""

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FrameType
from typing import Any

from py4j.java_gateway import JavaMember

ERRORS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
# System calls, and functions of libraries whose own calls a profile function does not see. `cimpl` is Kafka's client.
SYSTEM = ("posix", "_io", "deltalake._internal", "cimpl")
LIBRARIES = ("pyarrow/parquet/core.py", "deltalake/table.py", "include/lake/", "include/delta/stored_table.py")
# It only looks at a name.
OTHERS = ("fspath",)
# Their files are connections between Python and the JVM of one driver. PySpark waits for ever for the end of a result
# if one of these fails.
OF_JVM = ("/socket.py", "/pyspark/", "/py4j/")
# Methods of Java objects that read or write files.
JAVA = {"commit", "update", "startTransaction", "txnVersion", "forTable", "save", "execute", "head", "collectToPython"}
JAVA |= {"collectAsArrowToPython", "count", "localCheckpoint", "forPath"}


# A call, as `f of g`, and how often it was made before.
Place = tuple[str, int]


@dataclass
class LateErrors:
    """Lets the call at this place fail after its work. calls: all calls so far, in order."""

    place: Place | None
    number: int
    calls: list[str] = field(default_factory=list)
    is_raised: bool = False

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        if call := _call(frame, event, argument):
            place = (call, self.calls.count(call))
            self.calls.append(call)
            if place == self.place:
                self.is_raised = True
                sys.setprofile(None)
                raise OSError(self.number, f"an error after success of {call}")


def _call(frame: FrameType, event: str, argument: Any) -> str | None:
    if event == "c_return":
        module = getattr(argument, "__module__", None) or type(getattr(argument, "__self__", None)).__module__
        is_of_file = isinstance(argument, BuiltinFunctionType) and module in SYSTEM and argument.__name__ not in OTHERS
        is_of_file &= not any(part in frame.f_code.co_filename for part in OF_JVM)
        return f"{argument.__name__} of {frame.f_code.co_name}" if is_of_file else None
    if event != "return":
        return None
    if frame.f_code.co_name == "__call__" and frame.f_code.co_filename.endswith("py4j/java_gateway.py"):
        called, caller = frame.f_locals.get("self"), frame.f_back
        # Other objects ask the JVM for an attribute.
        name = called.name if type(called) is JavaMember else None
        return f"{name} of {caller.f_code.co_name if caller else ''}" if name in JAVA else None
    is_of_library = any(part in frame.f_code.co_filename for part in LIBRARIES)
    # A generator returns with each value.
    is_generator = frame.f_code.co_flags & 0x20
    return frame.f_code.co_name if is_of_library and not is_generator else None


@contextmanager
def late_errors(place: Place | None, number: int = ERRORS[0]) -> Iterator[LateErrors]:
    """number: of the error, such as EIO."""
    errors = LateErrors(place, number)
    sys.setprofile(errors.see)
    try:
        yield errors
    finally:
        sys.setprofile(None)


def places_of(work: Callable[[], object]) -> list[Place]:
    """The calls of a first run, none of which fails."""
    with late_errors(None) as errors:
        work()
    return [(call, errors.calls[:position].count(call)) for position, call in enumerate(errors.calls)]
