"""Text as it can be stored, in both kinds of control database and in tables."""

from typing import Any

import sqlalchemy


def storable(text: str) -> str:
    """What a store refuses is written as its escape: NUL as `\\x00`, half of a surrogate pair as `\\udce9`.

    Spark's errors quote values of payloads, and names of files need not be UTF-8.
    """
    return text.replace("\x00", r"\x00").encode("utf-8", "backslashreplace").decode("utf-8")


class String(sqlalchemy.TypeDecorator[str]):
    """A column that takes any text, by `storable`."""

    impl = sqlalchemy.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else storable(value)
