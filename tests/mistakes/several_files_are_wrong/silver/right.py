"""Right, beside wrong ones."""

from include.spec import Delta, Table

TABLE = Table(name="silver.right", comment="", source=Delta("bronze.events"), schema="key BINARY")
