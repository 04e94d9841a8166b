"""Values have names."""

from include.spec import Delta, Table

TABLE = Table("silver.readings", Delta("bronze.events"))
