"""Has nothing wrong, but reads a table that has."""

from include.spec import Delta, Table

TABLE = Table(name="gold.waiting", comment="", source=Delta("silver.readings"), schema="key BINARY")
