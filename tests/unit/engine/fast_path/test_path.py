"""Which flows have a fast path, and what it makes of the answers and errors of its parts."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from include.engine.commit import CommitMetadata
from include.engine.fast_path import path
from include.engine.fast_path.append import Appender
from include.engine.fast_path.path import FastPath
from include.engine.fast_path.table_layout import NotSupported
from include.engine.rows.micro_batch import Refusal, Written
from include.engine.sources.reader import PlannedRead
from include.spec import Append, Delta, Flow, Table

TABLE = Flow(name="silver.t", source=Delta("bronze.t"), comment="a test", schema="id BIGINT", write=Append())
METADATA = CommitMetadata("silver.t", 2, 7, 1, {}, {"from": 1}, {"to": 2})
PLANNED, WRITTEN = PlannedRead(3), Written(3, None)


def answer_of(outcome: Any) -> Any:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


class AnyAppender(Appender):
    """Answers, or raises, what a test gives it; notes what it is asked for."""

    def __init__(self, outcome: Any = WRITTEN, companions: tuple[Any, ...] = ()) -> None:
        self.outcome, self.asked, self.forgotten = outcome, list[Any](), 0
        self.of_table, self.target = companions, SimpleNamespace(is_unanswered=True)

    @property
    def companions(self) -> tuple[Any, ...]:
        return self.of_table

    def write(self, *arguments: Any) -> Any:
        self.asked.append(arguments)
        self.target.rows_written += 2
        for companion in self.companions[:1]:
            assert not companion.has_written
        return answer_of(self.outcome)

    def append(self, parts: Any, metadata: CommitMetadata) -> Any:
        self.asked.append((list(parts), metadata))
        return answer_of(self.outcome)

    def forget(self) -> None:
        self.forgotten += 1


@dataclass
class Batch:
    metadata: CommitMetadata = METADATA
    noted: dict[str, Any] = field(default_factory=dict)

    def noting(self, **fields: Any) -> "Batch":
        return Batch(self.metadata, fields)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FastPath]:
    """`made(writer, planned)`: the fast path of this writer; its source answers, or raises, `planned`."""

    def make(writer: AnyAppender, planned: Any = PLANNED) -> FastPath:
        def read(begin: Any, end: Any) -> Any:
            assert (begin, end) == ({"from": 1}, {"to": 2})
            return answer_of(planned)

        def reader_of(flow: Flow) -> SimpleNamespace:
            assert flow is TABLE
            return SimpleNamespace(planned=read)

        def make_writer(spark: str, table: Table) -> AnyAppender:
            assert (spark, table) == ("the session", TABLE)
            return writer

        monkeypatch.setattr(path.readers, "of", reader_of)
        monkeypatch.setattr(path, "_writer_of", lambda table: {TABLE.name: make_writer}[table.name])
        monkeypatch.setattr(path.transaction, "unexpected", lambda spark: None)
        found = path.of("the session", TABLE)
        assert found
        return found

    return make


@pytest.fixture(autouse=True)
def fast_path_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "settings", lambda: SimpleNamespace(fast_path=True))


def test_a_flow_has_a_fast_path_unless_it_is_switched_off_or_is_a_view_or_no_writer_suits(monkeypatch):
    assert path.suits(TABLE)
    view = SimpleNamespace(is_view=True, name="silver.t")
    monkeypatch.setattr(path, "_writer_of", lambda table: AnyAppender)
    assert not path.suits(view)
    assert path.of("the session", view) is None
    monkeypatch.setattr(path, "_writer_of", lambda table: None)
    assert not path.suits(TABLE)
    with pytest.raises(AssertionError, match=r"^no writer suits silver\.t$"):
        FastPath("the session", TABLE)
    monkeypatch.undo()
    monkeypatch.setattr(path, "settings", lambda: SimpleNamespace(fast_path=False))
    assert not path.suits(TABLE)


def test_where_sparks_internals_differ_spark_writes_all_batches_and_the_log_says_why(monkeypatch, caplog):
    monkeypatch.setattr(path.transaction, "unexpected", {"the session": "a class is missing"}.get)
    with caplog.at_level(logging.WARNING, "sluice"):
        assert path.of("the session", TABLE) is None
    assert caplog.messages == ["silver.t: Spark's writer takes small batches, too: a class is missing"]


def test_a_batch_is_written_as_one_of_the_fast_path(made):
    writer = AnyAppender()
    fast_path = made(writer)
    # Each batch counts from zero.
    assert [fast_path.write(Batch()) for _ in range(2)] == [replace(WRITTEN, written=2)] * 2
    assert writer.asked == [(Batch(METADATA, {"fast_path": True}), PLANNED)] * 2


def test_a_read_that_is_refused_is_not_written(made):
    writer, refusal = AnyAppender(), Refusal("it is large", is_large=True)
    assert made(writer, refusal).write(Batch()) == refusal
    assert writer.asked == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotSupported("its rows differ"), "its rows differ"),
        (pa.ArrowInvalid("no UTF-8"), "ArrowInvalid: no UTF-8"),
        (DeltaError("no log"), "DeltaError: no log"),
        (OSError("no disk"), "OSError: no disk"),
        (KeyError("id"), "KeyError: 'id'"),
        (ValueError("no year"), "ValueError: no year"),
        (OverflowError("far"), "OverflowError: far"),
    ],
)
def test_what_a_library_cannot_read_is_left_to_spark(made, error: Exception, reason: str):
    assert made(AnyAppender(error)).write(Batch()) == Refusal(reason)
    assert made(AnyAppender(), error).write(Batch()) == Refusal(reason)


def test_any_other_error_ends_the_batch(made):
    fast = made(AnyAppender(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        fast.write(Batch())
    with pytest.raises(ZeroDivisionError):
        fast.append(SimpleNamespace(toArrow=dict), METADATA)


def test_rows_that_no_stream_has_read_are_appended_as_arrow_or_refused(made):
    writer, rows = AnyAppender(None), SimpleNamespace(toArrow=lambda: "the rows")
    assert made(writer).append(rows, METADATA) is None
    [(parts, metadata)] = writer.asked
    assert (parts, metadata.fast_path, metadata.batch) == (["the rows"], True, 7)
    assert made(AnyAppender(WRITTEN)).append(rows, METADATA) is None
    for outcome, refusal in (
        (Refusal("it is partitioned"), Refusal("it is partitioned")),
        (NotSupported("its rows differ"), Refusal("its rows differ")),
        (pa.ArrowInvalid("no UTF-8"), Refusal("ArrowInvalid: no UTF-8")),
    ):
        assert made(AnyAppender(outcome)).append(rows, METADATA) == refusal


def test_companions_of_the_last_batch_do_not_count_for_the_next(made):
    companions = tuple(SimpleNamespace(has_written=written) for written in (True, False))
    fast = made(AnyAppender(companions=companions))
    assert fast.has_written_companions
    fast.write(Batch())
    assert not fast.has_written_companions
    assert [companion.has_written for companion in companions] == [False, False]


def test_each_reason_is_logged_once_and_that_of_a_large_batch_never(made, caplog):
    fast = made(AnyAppender())
    with caplog.at_level(logging.WARNING, "sluice"):
        for reason in ("a", "b", "a"):
            fast.say(Refusal(reason))
            fast.say(Refusal(f"{reason} large", is_large=True))
    assert caplog.messages == [f"silver.t: batches use Spark's writer: {reason}" for reason in "ab"]


def test_a_commit_that_raised_and_what_is_known_are_those_of_the_writer(made):
    writer = AnyAppender()
    fast = made(writer)
    assert fast.may_have_committed
    writer.target.is_unanswered = False
    assert not fast.may_have_committed
    fast.forget()
    assert writer.forgotten == 1
