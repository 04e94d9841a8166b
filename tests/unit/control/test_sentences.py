"""No code reads a sentence back: sentences are for people, and what follows from one is a value of its own."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# What sentences are called, as columns, fields, parameters and variables.
SENTENCES = {
    *("why", "reason", "said", "failure", "result", "message", "sentence", "words", "next_step", "detail"),
    "recomputed",
}
READING = {
    *("startswith", "endswith", "partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix"),
    *("find", "rfind", "index", "like", "ilike", "contains", "match", "search", "fullmatch"),
}
# The message is Spark's. The check sorts mistakes by the file with which each begins.
ALLOWED = {("include/engine/failure.py", "message"), ("include/engine/check/check.py", "sentence")}
LOGIC = [
    f"tests/unit/control/{name}.py"
    for name in (*("test_acknowledgements", "jobs/test_held_flows", "jobs/test_give_up", "jobs/test_stale_rows"),)
]
# Names of tests that assert what a sentence says.
ABOUT_SENTENCES = (
    *("says", "tells", "audit", "between_restore_and_new_generations", "lets_its_readers_go_on"),
    "leaves_what_others_recompute_to_them",
)


def called(node: ast.AST) -> str:
    """The last part of a name, such as `why` of `row.why`, `rows.c.why`, `row["why"]` and `str(why)`."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Name(id="str"), args=[argument]):
            return called(argument)
    return ""


def reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a part of a sentence is looked for, or a sentence compared to a text: the line, and the name."""
    for node in ast.walk(tree):
        match node:
            # `message.partition()` of Kafka takes no argument.
            case ast.Call(func=ast.Attribute(attr=method, value=value), args=[_, *_] as arguments) if method in READING:
                names = [called(value), *map(called, arguments)]
            case ast.Compare(left=left, comparators=others) if any(map(is_text, (left, *others))):
                names = [called(side) for side in (left, *others)]
            case _:
                continue
        yield from ((node.lineno, name) for name in names if name in SENTENCES)


def is_text(node: ast.AST) -> bool:
    # An empty text is no sentence.
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""
    )


@pytest.mark.parametrize(
    "line",
    [
        "row.why.endswith('backfill 3 recomputes it')",
        "kind, _, why = sentence.partition(': ')",
        "'nothing done' in answer.message",
        "row['reason'] == f'backfill {number}'",
        "stale.c.why.like('%backfill%')",
        "re.search('backfill ([0-9]+)', str(failure))",
    ],
)
def test_a_line_that_reads_a_sentence_is_found(line: str):
    assert list(reads(ast.parse(line)))


def test_no_code_looks_for_a_text_in_a_sentence():
    files = [file for pattern in ("include/**/*.py", "dags/*.py", "jobs/*.py") for file in ROOT.glob(pattern)]
    found = [
        f"{path}:{line} reads {name}"
        for file in files
        for path in [str(file.relative_to(ROOT))]
        for line, name in reads(ast.parse(file.read_text()))
        if (path, name) not in ALLOWED
    ]
    assert found == []


def test_jobs_held_flows_and_alarms_do_the_same_where_every_stored_sentence_is_nonsense(tmp_path: Path):
    chosen = " and ".join(f"not {name}" for name in ("postgresql", *ABOUT_SENTENCES))
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.support.nonsense",
        "-k",
        chosen,
        "--basetemp",
        tmp_path / "t",
    ]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *LOGIC], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout[-3000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed and int(passed[1]) > 100
