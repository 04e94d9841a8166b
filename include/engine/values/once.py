"""Binds a value to a variable of an expression."""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F


def once(value: Column, expression: Callable[[Column], Column]) -> Column:
    """Returns the expression of a value, which is evaluated and planned once, however often the expression uses it.

    An expression is a tree: each use of a value is a copy of it, and copies of copies make plans of megabytes.
    """
    return F.get(F.transform(F.array(value), expression), F.lit(0))
