"""Text as both databases can store it."""

from typing import Any

import sqlalchemy


class String(sqlalchemy.TypeDecorator[str]):
    """Any text. What one of the databases refuses is written as its escape: NUL as `\\x00`, half of a surrogate pair
    as `\\udce9`. Spark's errors quote values of payloads, and names of files need not be UTF-8.
    """

    impl = sqlalchemy.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        if value is None:
            return None
        return value.replace("\x00", r"\x00").encode("utf-8", "backslashreplace").decode("utf-8")
