"""What can go wrong, one class for each person who must act, each with its exit code.

A message is one sentence: the table or setting, what is wrong with its value, what to do.
"""

import sys
from collections.abc import Callable


class SluiceError(Exception):
    """Something Sluice can name. Everything else is a bug and shows its stack trace."""

    exit_code = 1
    # Whether no retry cures it.
    needs_person = False


class UsageError(SluiceError):
    """The caller named a flow, option or setting that does not exist."""

    exit_code = 2
    needs_person = True


class DeclarationError(SluiceError):
    """The author of a table file has to change it.

    sentences: one for each mistake, a line of its own in the message. table: the one whose file it is, where it is one.
    """

    exit_code = 3
    needs_person = True

    def __init__(self, *sentences: str, table: str | None = None) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences
        self.table = table


class Unreachable(SluiceError):
    """A part outside this process (broker, control database, source table) does not answer. A retry may cure it."""

    exit_code = 4


class LeaseHeld(SluiceError):
    """Another live process owns the right to write. Nothing was touched."""

    exit_code = 5


class LeaseLost(SluiceError):
    """This process may no longer write; it ended before anybody else could begin."""

    exit_code = 6


class SetupError(SluiceError):
    """The machine lacks something: a port, Java, disk, a process that stayed up."""

    exit_code = 7


class FlowFailed(SluiceError):
    """A flow's query ended with an error of its own. error: Spark's class of it, or Java's."""

    exit_code = 8

    def __init__(self, sentence: str, error: str = "") -> None:
        super().__init__(sentence)
        self.error = error


class Broken(FlowFailed):
    """A flow failed in a way that no retry cures: schema, contract, lost data, a checkpoint that does not fit.

    error: Spark's class of it, or one of those that `docs/runbooks/broken.md` describes.
    """

    exit_code = 9
    needs_person = True


class Unbalanced(SluiceError):
    """Rows are in a table twice, or are missing from it, by the ledger's account."""

    exit_code = 10
    needs_person = True


def report(main: Callable[[], None]) -> None:
    """Run an entry point; a `SluiceError` becomes its sentence on stderr and its exit code."""
    try:
        main()
    except DeclarationError as error:
        print(*(f"sluice: {sentence}" for sentence in error.sentences), sep="\n", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except SluiceError as error:
        print(f"sluice: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
