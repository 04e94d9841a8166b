"""The text of an analysed plan. Two plans with the same text compute the same rows from the same tables.

Spark's own texts of a plan are made for people: they cut long lists, and leave out what they find too long.
"""

from collections.abc import Callable, Iterable
from typing import Any

from py4j.java_collections import JavaArray
from py4j.java_gateway import JavaObject, is_instance_of
from pyspark.sql import SparkSession

from include.delta.commit_history import RecomputeNeeded
from include.engine.rows.transform import items
from include.engine.session import jvm_of

CATALYST = "org.apache.spark.sql.catalyst."
# Nodes that only name the rows below them.
NAMES_ONLY = {"SubqueryAlias", "View"}
# Java classes whose own text says all about them.
PLAIN = ("scala.Enumeration$Value", "java.lang.Enum", "java.lang.Class", "java.lang.Number", "java.time.ZoneId")


class PlanText:
    """Writes the texts of plans. table_of: the source that a node of a plan stands for; None for other nodes."""

    def __init__(self, spark: SparkSession, table_of: Callable[[Any], str | None]) -> None:
        self._jvm = jvm_of(spark)
        assert spark.sparkContext._gateway
        self._gateway = spark.sparkContext._gateway
        self._table_of = table_of
        # Numbers of columns and CTEs in the order of their appearance, since Spark's differ each time.
        self._numbers: dict[object, int] = {}
        self._kinds: dict[str, Callable[[Any], Iterable[Any]]] = {}

    def of(self, plan: Any) -> str:
        """Raises RecomputeNeeded for a plan with a part that has no text, such as a compiled function."""
        # A stack instead of recursion, because expressions may be nested deeply.
        text, left = [], [plan]
        while left:
            part = left.pop()
            if isinstance(part, _Written):
                text.append(part)
            else:
                left += reversed([*self._parts(part)])
        return "".join(text)

    def _parts(self, value: Any) -> Iterable[Any]:
        """Returns what a value consists of."""
        if isinstance(value, JavaArray):
            return _group("Array", value)
        if not isinstance(value, JavaObject):
            return (_Written(f"{value!r} "),)
        name = value.getClass().getName()
        if name not in self._kinds:
            self._kinds[name] = self._kind(name, value)
        return self._kinds[name](value)

    def _kind(self, name: str, value: Any) -> Callable[[Any], Iterable[Any]]:
        """Returns the function that takes values of this class apart."""
        if self._is_a(value, CATALYST + "plans.logical.LogicalPlan"):
            return self._plan
        special: dict[str, Callable[[Any], Iterable[Any]]] = {
            "expressions.ExprId": lambda found: self._number(found.id()),
            "expressions.AttributeReference": self._attribute,
            "expressions.NamedLambdaVariable": self._attribute,
            "expressions.Literal": lambda found: _group("Literal", (found.dataType(), self._value(found))),
        }
        if name.startswith(CATALYST) and (function := special.get(name.removeprefix(CATALYST))):
            return function
        if self._is_a(value, "org.apache.spark.sql.types.DataType") or name == "org.apache.spark.sql.types.Metadata":
            return lambda found: (_Written(f"{found.json()} "),)
        if any(self._is_a(value, kind) for kind in PLAIN):
            return lambda found: (_Written(f"{name} {found.toString()!r} "),)
        if self._is_a(value, "scala.collection.Iterable"):
            return lambda found: _group("", items(found.toSeq()))
        if self._is_a(value, CATALYST + "trees.TreeNode"):
            return lambda found: _group(name, _elements_of_node(found))
        if self._is_a(value, "scala.Product"):
            return lambda found: _group(name, _elements(found))
        raise RecomputeNeeded(f"its plan does not show all that it computes ({name.rpartition('.')[2]})")

    def _plan(self, plan: Any) -> Iterable[Any]:
        name = plan.nodeName()
        if table := self._table_of(plan):
            return _group(f"table {table!r}", (plan.output(),))
        if name in NAMES_ONLY:
            return (plan.child(),)
        if name == "CTERelationDef":
            return _group(name, (*self._number(f"CTE {plan.id()}"), plan.child()))
        if name == "CTERelationRef":
            return _group(name, (*self._number(f"CTE {plan.cteId()}"), plan.output()))
        if name == "LocalRelation":
            return _group(name, (plan.output(), *self._rows(_types(plan), items(plan.data()))))
        return _group(name, _elements_of_node(plan))

    def _attribute(self, column: Any) -> Iterable[Any]:
        # Its name may be one of a series, as in lambda functions, and its metadata an id of the data frame.
        return _group("column", (column.dataType(), column.nullable(), *self._number(column.exprId().id())))

    def _number(self, key: object) -> tuple["_Written"]:
        return (_Written(f"#{self._numbers.setdefault(key, len(self._numbers))} "),)

    def _value(self, literal: Any) -> Any:
        """Returns the value of a literal, in Python or as the bytes of a row."""
        value = literal.value()
        if not isinstance(value, JavaObject):
            return value
        if value.getClass().getSimpleName() == "UTF8String":
            return bytes(value.getBytes())
        row = self._jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(1)
        row.update(0, value)
        return self._rows([literal.dataType()], [row])[0]

    def _rows(self, types: list[Any], rows: list[Any]) -> list[bytes]:
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        columns = [expressions.BoundReference(place, data_type, True) for place, data_type in enumerate(types)]
        # Not one of generated code: py4j takes the classes of all of these for the same.
        projection = expressions.InterpretedUnsafeProjection.createProjection(self._jvm.PythonUtils.toSeq(columns))
        return [bytes(projection.apply(row).getBytes()) for row in rows]

    def _is_a(self, value: Any, name: str) -> bool:
        return bool(is_instance_of(self._gateway, value, name))


class _Written(str):
    """A part of the text."""


def _group(name: str, parts: Iterable[Any]) -> list[Any]:
    return [_Written(f"{name}("), *parts, _Written(")")]


def _types(plan: Any) -> list[Any]:
    return [column.dataType() for column in items(plan.output())]


def _elements(product: Any) -> list[Any]:
    """Returns the values that a case class consists of."""
    return [product.productElement(place) for place in range(product.productArity())]


def _elements_of_node(node: Any) -> list[Any]:
    """Returns the values that a node of a tree consists of, those of its second list included."""
    return [*_elements(node), *items(node.otherCopyArgs())]
