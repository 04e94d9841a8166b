"""Has nothing wrong, but reads such a table."""

from include.spec import Delta, Table

TABLE = Table(name="gold.below", comment="", source=Delta("gold.waiting"), schema="key BINARY")
