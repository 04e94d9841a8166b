"""Stores pseudonyms instead of values: HMAC-SHA256 under a key that somebody may destroy.

Python computes them, because Spark would show a key that its own functions got as an argument in each plan.
"""

import hmac
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from include.errors import FlowBroken
from include.settings import settings
from include.spec import Table

FEWEST_BYTES = 32
# The class of these errors, as `docs/runbooks/broken.md` names it.
NO_KEY = "PSEUDONYM_KEY"


def applied(rows: DataFrame, table: Table) -> DataFrame:
    """Returns the rows of a table with pseudonyms in its declared columns. Raises FlowBroken without a usable key."""
    if not table.pseudonymise:
        return rows
    # Spark's own types demand the kind of the function, and Spark warns where it is given beside annotations.
    pseudonym = arrow_udf(_function(key_of(table)), "STRING")  # type: ignore[call-overload]
    return rows.withColumns({name: pseudonym(F.col(f"`{name}`").cast("string")) for name in table.pseudonymise})


def key_of(table: Table) -> bytes:
    """Returns the key of pseudonyms. Raises FlowBroken if there is none, or if others may read it."""
    file = settings().pseudonym_key
    problem = None
    try:
        key, mode = file.read_bytes().strip(), file.stat().st_mode
    except OSError as error:
        problem = f"cannot be read ({error.strerror}): restore it; a new one makes other pseudonyms of the same values"
    else:
        if mode & 0o007:
            problem = f"can be read by everybody: run chmod 600 {file}"
        elif len(key) < FEWEST_BYTES:
            problem = f"has {len(key)} bytes, and fewer than {FEWEST_BYTES} can be guessed: write a longer one"
    if problem:
        raise FlowBroken(f"{table.name}: the key of its pseudonyms, {file}, {problem}", NO_KEY)
    return key


def _function(key: bytes) -> Callable[[pa.Array], pa.Array]:
    def pseudonym(values: pa.Array) -> pa.Array:
        texts = (value if value is None else value.encode() for value in values.to_pylist())
        return pa.array(
            [None if text is None else hmac.new(key, text, "sha256").hexdigest() for text in texts], pa.string()
        )

    return pseudonym
