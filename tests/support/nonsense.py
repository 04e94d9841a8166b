"""A plugin of pytest, `-p tests.support.nonsense`: every sentence that the control database stores becomes nonsense.

What follows from a sentence, instead of from a value, then fails. A NULL stays one.
"""

from typing import Any

from include.control.store.job_schema import metadata
from include.control.store.storable_text import String

SENTENCES = {"why", "reason", "message", "failure", "result", "details"}


class Nonsense(String):
    """A column that forgets what its sentences say."""

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else "Lorem ipsum: dolor sit amet"


for table in metadata.tables.values():
    for column in table.columns:
        if column.name in SENTENCES:
            column.type = Nonsense()
