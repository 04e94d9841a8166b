"""Long work shows how far it is: in a terminal on one line that changes, and in a pipe as plain lines."""

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from include import progress
from include.progress import LINE_SECONDS, Progress, counted, reported
from include.settings import ROOT

# A first line that is longer than the terminal, then shorter ones, and other output at the end.
PROGRAM = """
import sys
import threading
from include.progress import Progress, counted

with Progress(sys.stdout, clock=iter(range(1000)).__next__) as progress:
    progress.show("Spark starts " + "x" * 200)
    for number in range(40):
        progress.show(counted(number, 40, "tables analysed"))
print("40 tables are right")
"""


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: where its output is read, and where a program writes it."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def screens(output: str) -> list[str]:
    """What each line of a screen showed, one after the other: what is written at a place replaces what stood there."""
    seen, line, column = [], "", 0
    for character in output.replace("\r\n", "\n"):
        if character in "\r\n":
            seen.append(line.rstrip())
            line, column = ("" if character == "\n" else line), 0
        else:
            line, column = line[:column] + character + line[column + 1 :], column + 1
    return seen


def read(end: int, until: str) -> str:
    output = ""
    while until not in output:
        output += os.read(end, 65536).decode()
    return output


def test_a_terminal_shows_one_line_that_changes_and_at_the_end_nothing_of_it(terminal: tuple[int, int]):
    screen_end, program_end = terminal
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=program_end) as process:
        seen = screens(read(screen_end, "are right\r\n"))
        assert process.wait(60) == 0
    assert seen[0] == ("Spark starts " + "x" * 200)[: progress.COLUMNS - 1], "a longer one would take a second line"
    shown = [counted(number, 40, "tables analysed") for number in range(40)]
    assert [line for line in seen if line in shown] == shown
    assert seen[-2:] == ["", "40 tables are right"]


def test_a_pipe_gets_a_plain_line_every_few_seconds_and_no_control_character():
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    *lines, last = output.splitlines()
    assert last == "40 tables are right"
    assert 3 < len(lines) < 40 / LINE_SECONDS + 1
    assert set(lines) <= {counted(number, 40, "tables analysed") for number in range(40)}
    assert {character for character in output if not character.isprintable()} == {"\n"}


def test_work_that_ends_soon_says_nothing_in_a_pipe():
    reading_end, writing_end = os.pipe()
    with os.fdopen(writing_end, "w") as stream, Progress(stream, clock=lambda: 0.0) as shown:
        shown.show("1 of 2 tables analysed")
    with os.fdopen(reading_end) as stream:
        assert stream.read() == ""


def test_what_else_is_printed_in_a_terminal_stands_alone(terminal: tuple[int, int]):
    screen_end, program_end = terminal
    with os.fdopen(os.dup(program_end), "w") as stream:
        shown = Progress(stream)
        shown.show("3 of 7 flows run")
        shown.clear()
        stream.write("Kafka broker answers\n")
        stream.flush()
    assert screens(read(screen_end, "answers\r\n"))[-2:] == ["", "Kafka broker answers"]


def test_a_job_is_reported_in_its_thread_while_it_works_and_not_after_it():
    reports = threading.Semaphore(0)
    with reported(reports.release, seconds=0.001):
        assert all(reports.acquire(timeout=60) for _ in range(3))
    assert "progress" not in {thread.name for thread in threading.enumerate()}
