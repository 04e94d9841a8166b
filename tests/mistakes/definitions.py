"""All wrong definitions, of all topics."""

from tests.mistakes import (
    columns,
    files,
    kinds,
    layout,
    lookups,
    parsing,
    personal,
    rules,
    sources,
    steps,
    times,
    views,
    writes,
)

TOPICS = (columns, files, kinds, layout, lookups, parsing, personal, rules, sources, steps, times, views, writes)
CASES = tuple(case for topic in TOPICS for case in topic.CASES)
