"""Lies beside the layers."""

from include.spec import Delta, Table

TABLE = Table(name="silver.readings", comment="readings", source=Delta("bronze.events"))
