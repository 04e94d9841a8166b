"""Computes the outcome of a preview without the rows that fail by themselves, which a flow would quarantine."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from include.engine import failure
from include.engine.batch import isolation, poison
from include.engine.preview import outcome
from include.engine.preview.outcome import Outcome
from include.rules import FAILED, Expect, Rule
from include.spec import Table

ALL_FAIL = "every row that was tried fails: a flow whose definition has made no rows yet would be BROKEN"
TOO_MANY = "too many rows fail: the flow would be BROKEN, and no other row was looked at"
FAILING = Expect(FAILED, "true")


@dataclass(frozen=True)
class Evaluated:
    """An outcome. failed: by place, why no row could be made of a row of the source. notes: what that means."""

    outcome: Outcome
    failed: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def evaluated(
    source: DataFrame, make: Callable[[DataFrame], DataFrame], table: Table, rules: tuple[Rule, ...], limit: int
) -> Evaluated:
    """Returns the outcome of these source rows. make: makes rows of the table. rules, limit: as for `outcome.of`."""
    return evaluated_by_source({"": source}, lambda sources: make(sources[""]), table, rules, limit)


def evaluated_by_source(
    sources: Mapping[str, DataFrame],
    make: Callable[[Mapping[str, DataFrame]], DataFrame],
    table: Table,
    rules: tuple[Rule, ...],
    limit: int,
) -> Evaluated:
    """Returns the outcome of the rows of several sources. make: makes rows of the table, of the sources by name."""

    def outcome_of(rows: Mapping[str, DataFrame]) -> Outcome:
        return outcome.of(make(rows), table, rules, limit)

    try:
        return Evaluated(outcome_of(sources))
    except (PySparkException, Py4JError) as error:
        if not isolation.is_suspected(error, table):
            raise
        return _without_failing(dict(sources), outcome_of, error)


def _without_failing(
    sources: dict[str, DataFrame], outcome_of: Callable[[Mapping[str, DataFrame]], Outcome], error: Exception
) -> Evaluated:
    """error: of all together."""
    failed, notes, still = dict[str, str](), list[str](), error
    with ExitStack() as held:
        for name in list(sources):
            rows = held.enter_context(poison.persisted(sources[name]))

            def error_of(begin: int, end: int, name: str = name, rows: poison.Rows = rows) -> Exception | None:
                return poison.error_of(lambda: outcome_of({**sources, name: rows.part(begin, end)}))

            search = poison.search(rows.count, error_of, still) if rows.count else poison.Search()
            if search.is_broken and name != list(sources)[-1]:
                # The rows of another source may be to blame.
                continue
            failed |= {rows.place(row.position): row.reason for row in search.found}
            notes += [ALL_FAIL] if search.is_broken else [TOO_MANY] if search.is_over else []
            sources[name] = rows.without([row.position for row in search.found])
            if search.is_over:
                sources[name] = sources[name].limit(0)
        if last := poison.error_of(lambda: outcome_of(sources)):
            notes.append(f"the rows fail together, and none of them alone: {failure.reason(last)}")
            sources = {name: rows.limit(0) for name, rows in sources.items()}
        result = outcome_of(sources)
    if failed:
        ends = {**result.ends, "quarantine": result.ends.get("quarantine", 0) + len(failed)}
        result = replace(result, ends=ends, broke=[(FAILING, len(failed)), *result.broke])
    return Evaluated(result, failed, tuple(notes))
