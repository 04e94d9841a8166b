"""The errors of Sluice: a class for each person who must act, each with its exit code.

A message is one sentence that names the table or setting, the mistake in its value, and the remedy.
"""

import errno
import hashlib
import os
import select
import sys
from collections.abc import Callable

# Errors of a file system for which a person, not a retry, has a remedy.
UNWRITABLE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
}
# As a shell reports a process that SIGPIPE, or SIGINT, has ended.
READER_GONE, INTERRUPTED = 141, 130


class SluiceError(Exception):
    """An error that Sluice expects. Any other exception is a bug and shows its stack trace."""

    exit_code = 1
    # True where a retry cannot help.
    needs_person = False


class UsageError(SluiceError):
    """The caller named a flow, option or setting that does not exist."""

    exit_code = 2
    needs_person = True


class DeclarationError(SluiceError):
    """The author of a table file has to change it.

    sentences: one for each mistake, each on its own line of the message. table: the table of the file, if it has one.
    """

    exit_code = 3
    needs_person = True

    def __init__(self, *sentences: str, table: str | None = None) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences
        self.table = table


class Unreachable(SluiceError):
    """A part outside this process (broker, store, control database, source table) does not answer. A retry may help.

    error: its class, if a runbook describes it, such as LAKE_UNREACHABLE.
    """

    exit_code = 4

    def __init__(self, sentence: str, error: str = "") -> None:
        super().__init__(sentence)
        self.error = error or type(self).__name__


class LeaseHeld(SluiceError):
    """Another live process holds the lease. This process has written nothing."""

    exit_code = 5


class LeaseLost(SluiceError):
    """This process has lost its lease. It ended before another process could take it."""

    exit_code = 6


class SetupError(SluiceError):
    """The machine lacks something: a port, Java, disk space, or a process that keeps running."""

    exit_code = 7


class FlowFailed(SluiceError):
    """A flow's query ended with an error. error: Spark's error class, or the Java class."""

    exit_code = 8

    def __init__(self, sentence: str, error: str = "") -> None:
        super().__init__(sentence)
        self.error = error


class FlowBroken(FlowFailed):
    """A flow failed and a retry cannot help: schema, contract, lost data, or a checkpoint that does not match.

    error: Spark's error class, or a class that `docs/runbooks/broken.md` describes.
    """

    exit_code = 9
    needs_person = True


class LedgerMismatch(SluiceError):
    """The ledger finds that a table holds rows twice, or lacks rows.

    differences: each difference by itself, where the error has several. about: what differs, where the sentence changes
    with each batch.
    """

    exit_code = 10
    needs_person = True

    def __init__(self, sentence: str, about: str = "", differences: "tuple[LedgerMismatch, ...]" = ()) -> None:
        super().__init__(sentence)
        self.differences = differences or (self,)
        self.key = hashlib.sha256((about or sentence).encode()).hexdigest()[:8]


class AuditBroken(SluiceError):
    """A row of the audit was changed, removed or inserted."""

    exit_code = 11
    needs_person = True


def report(main: Callable[[], None]) -> None:
    """Run an entry point. For a `SluiceError`, print its sentence to stderr and exit with its code.

    The same for a file that cannot be written. If the reader of the output is gone, as behind `| head`, or with Ctrl-C,
    end silently.
    """
    try:
        main()
        sys.stdout.flush()
    except DeclarationError as error:
        print(*(f"sluice: {sentence}" for sentence in error.sentences), sep="\n", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except SluiceError as error:
        print(f"sluice: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        if not _is_reader_gone():
            raise
        # Python flushes once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(READER_GONE)
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is None:
            raise
        print(
            f"sluice: {error.filename} cannot be used ({error.strerror}): correct its permissions or make room, or set "
            f"SLUICE_HOME to another directory",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(SetupError.exit_code)


def _is_reader_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))
