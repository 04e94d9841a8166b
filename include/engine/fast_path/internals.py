"""The internal classes of Delta and Spark that the fast path calls.

No other module names them. `unexpected` compares them with the signatures that Sluice was built for.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from include.engine.session import jvm_of

DELTA = "org.apache.spark.sql.delta"
SEQ, OPTION, STRING = "scala.collection.immutable.Seq", "scala.Option", "java.lang.String"
OPERATION, USER_METADATA = f"{DELTA}.DeltaOperations$Operation", "userMetadata"
# For each class its methods and constructors (`new`) with the classes of their parameters.
EXPECTED: dict[str, dict[str, tuple[str, ...]]] = {
    f"{DELTA}.DeltaLog": {
        "forTable": ("org.apache.spark.sql.SparkSession", STRING),
        "unsafeVolatileSnapshot": (),
        "update": ("boolean", OPTION, OPTION),
        "startTransaction": (OPTION, OPTION),
    },
    f"{DELTA}.Snapshot": {"version": (), "metadata": (), "protocol": (), "checksumOpt": ()},
    f"{DELTA}.OptimisticTransaction": {
        "commit": (SEQ, f"{DELTA}.DeltaOperations$Operation"),
        "readTxn": (),
        "readWholeTable": (),
        "txnVersion": (STRING,),
        "registerSQLMetrics": ("org.apache.spark.sql.SparkSession", "scala.collection.immutable.Map"),
    },
    f"{DELTA}.VersionChecksum": {"setTransactions": ()},
    f"{DELTA}.actions.SetTransaction": {"appId": (), "version": ()},
    OPERATION: {USER_METADATA: ()},
    f"{DELTA}.actions.Action": {"fromJson": (STRING,), "json": ()},
    f"{DELTA}.DeltaOperations$Write": {"new": ("org.apache.spark.sql.SaveMode", *[OPTION] * 8)},
    f"{DELTA}.DeltaOperations$Merge": {"new": (*[OPTION] * 4, *[SEQ] * 3)},
    f"{DELTA}.DeltaOperations$Optimize": {"new": (SEQ, SEQ, "boolean", OPTION, "boolean")},
    "org.apache.spark.sql.execution.metric.SQLMetrics": {"createMetric": ("org.apache.spark.SparkContext", STRING)},
}


@dataclass(frozen=True)
class Internals:
    """Handles on JVM classes; looking one up by name takes several calls into the JVM."""

    delta_log: Any
    action: Any
    write: Any
    merge: Any
    optimize: Any
    append_mode: Any
    create_metric: Any
    to_seq: Any
    to_map: Any
    some: Any
    none: Any
    array_list: Any
    hash_map: Any
    user_metadata: Any

    def stamped(self, operation: Any, metadata: str) -> Any:
        """Returns an operation that has no parameter for it with this `userMetadata`.

        Without it, Delta takes the setting of whatever session is active in the thread.
        """
        self.user_metadata.set(operation, self.some(metadata))
        return operation


def unexpected(spark: SparkSession) -> str | None:
    """Returns a sentence about what differs in the internals; None if nothing does."""
    jvm = jvm_of(spark)
    for name, methods in EXPECTED.items():
        if not jvm.org.apache.spark.util.Utils.classIsLoadable(name):
            return f"the class {name} is missing"
        java_class = _class(jvm, name)
        for method, parameters in methods.items():
            if not _has(spark, java_class, method, parameters):
                return f"{name}.{method}({', '.join(parameters)}) is missing"
    try:
        _user_metadata(jvm)
    except Py4JError:
        return f"the field {USER_METADATA} of {OPERATION} cannot be set"
    return None


def _has(spark: SparkSession, java_class: Any, method: str, parameters: tuple[str, ...]) -> bool:
    jvm = jvm_of(spark)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    parameter_classes = gateway.new_array(jvm.java.lang.Class, len(parameters))
    for index, name in enumerate(parameters):
        parameter_classes[index] = jvm.java.lang.Boolean.TYPE if name == "boolean" else _class(jvm, name)
    try:
        java_class.getConstructor(parameter_classes) if method == "new" else java_class.getMethod(
            method, parameter_classes
        )
    except Exception:
        return False
    return True


def _class(jvm: Any, name: str) -> Any:
    return jvm.org.apache.spark.util.Utils.classForName(name, False, False)


def _user_metadata(jvm: Any) -> Any:
    """Returns the field of an operation that Delta writes into the commit."""
    field = _class(jvm, OPERATION).getDeclaredField(USER_METADATA)
    field.setAccessible(True)
    return field


@lru_cache(maxsize=1)
def internals(context: Any) -> Internals:
    jvm = context._jvm
    delta, python = jvm.org.apache.spark.sql.delta, jvm.org.apache.spark.api.python.PythonUtils
    return Internals(
        delta_log=delta.DeltaLog,
        action=delta.actions.Action,
        write=getattr(delta, "DeltaOperations$Write"),
        merge=getattr(delta, "DeltaOperations$Merge"),
        optimize=getattr(delta, "DeltaOperations$Optimize"),
        append_mode=jvm.org.apache.spark.sql.SaveMode.Append,
        create_metric=jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric,
        to_seq=python.toSeq,
        to_map=python.toScalaMap,
        some=jvm.scala.Option.apply,
        none=jvm.scala.Option.empty(),
        array_list=jvm.java.util.ArrayList,
        hash_map=jvm.java.util.HashMap,
        user_metadata=_user_metadata(jvm),
    )
