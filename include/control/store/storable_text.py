"""Text that both kinds of control database, and Delta tables, can store."""

from typing import Any

import sqlalchemy


def storable(text: str) -> str:
    """Escape what a store refuses: NUL as `\\x00`, and half of a surrogate pair as `\\udce9`.

    Spark's errors quote values of payloads, and file names need not be UTF-8.
    """
    return text.replace("\x00", r"\x00").encode("utf-8", "backslashreplace").decode("utf-8")


class String(sqlalchemy.TypeDecorator[str]):
    """A column that stores any text, by way of `storable`."""

    impl = sqlalchemy.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else storable(value)
