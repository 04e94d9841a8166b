"""TABLE is no Table."""

TABLE = {"name": "silver.readings"}
