"""Commits data files to a stored table by Delta's own transaction, without a Spark query.

A DataFrame write, a MERGE or an OPTIMIZE plans several queries for each commit, which cost far more than a small batch.
All of them end in this transaction, which checks conflicts and writes checksums and checkpoints.

No other module names internal classes of Delta and Spark. `unexpected` compares them with the signatures that Sluice
was built for.
"""

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from include.delta import commit_history
from include.delta.delta_log import MERGED, DeltaLog
from include.engine.fast_path.table_layout import Layout, layout
from include.engine.rows.micro_batch import Refusal
from include.engine.session import jvm_of
from include.lake import locations
from include.lake.paths import LakePath, ObjectStat

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
    f"{DELTA}.Snapshot": {"version": (), "metadata": (), "protocol": (), "checksumOpt": (), "allFiles": ()},
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


def _layout_of(snapshot: Any, moves_rows: bool = False) -> Layout | Refusal:
    metadata, protocol = json.loads(snapshot.metadata().json()), json.loads(snapshot.protocol().json())
    return layout(metadata["metaData"], protocol["protocol"], moves_rows)


# Delta keeps the commits since the checkpoint that it has seen last in memory, and walks through them at each commit.
# Only a listing of the log shows it a newer checkpoint.
COMMITS_BETWEEN_LISTINGS = 100


# Of an append, and of a MERGE.
ROWS_WRITTEN = ("numOutputRows", *MERGED.values())


@dataclass(frozen=True)
class StoredFile:
    """A data file of a table, as its log has it: the path is URL-encoded, and values of partitions are texts."""

    logged_path: str
    size: int
    partition: dict[str, str | None]

    @property
    def path(self) -> str:
        """From the table's directory on."""
        return unquote(self.logged_path)


class Target:
    """A stored table that one flow commits to.

    committed: the newest version that this object committed; None before the first commit and after a failed one.
    is_unanswered: whether its last commit has raised, so that only the table tells whether it was made.
    rows_written: that its newest commit has added, changed or deleted.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        self.path = locations.table_path(name)
        self.committed: int | None = None
        self.is_unanswered = False
        self.rows_written = 0
        self._spark = spark
        self._java = internals(spark.sparkContext)
        self._log = self._java.delta_log.forTable(spark._jsparkSession, str(self.path))
        self._layout_of: tuple[Any, Any, Layout | Refusal] | None = None
        self._newest: tuple[Any, ...] | None = None
        self._commits_since_listing = 0

    def begin(self, moves_rows: bool = False) -> "Transaction | Refusal":
        """Begins a transaction on the newest version, or returns why the fast path cannot write the table. moves_rows:
        as for `layout`.
        """
        self.is_unanswered = False
        snapshot = self._snapshot()
        self._require_unrestored(int(snapshot.version()))
        table_layout = _layout_of(snapshot, moves_rows=True) if moves_rows else self._layout(snapshot)
        if isinstance(table_layout, Refusal):
            return table_layout
        txn = self._log.startTransaction(self._java.none, self._java.some(snapshot))
        return Transaction(self, self._spark, self._java, txn, snapshot, table_layout)

    @property
    def version(self) -> int:
        """The newest version of the table."""
        return int(self._snapshot().version())

    def _snapshot(self) -> Any:
        """Returns the newest snapshot. Delta would list its log, which takes ever longer; one stat call shows a new
        commit.
        """
        snapshot = self._log.unsafeVolatileSnapshot()
        version = int(snapshot.version())
        if (
            self._newest is None
            or self._commits_since_listing >= COMMITS_BETWEEN_LISTINGS
            or self._stat_commit(version) != self._newest
            or self._commit_file(version + 1).exists()
        ):
            snapshot = self._log.update(False, self._java.none, self._java.none)
            self._newest = self._stat_commit(int(snapshot.version()))
            self._commits_since_listing = 0
        return snapshot

    def _require_unrestored(self, version: int) -> None:
        """Raises FlowBroken if somebody has restored the table since the newest commit of this object."""
        if self.committed is None or version == self.committed:
            return
        since = range(self.committed + 1, version + 1)
        if (restore := commit_history.restored_by_hand(DeltaLog(self.path, since), since)) is not None:
            raise commit_history.restored_error(self.name, f"until version {restore.version}")

    def _stat_commit(self, version: int) -> tuple[Any, ...] | None:
        """Returns what another file of this version would not have; None if there is none."""
        try:
            status = self._commit_file(version).stat()
        except FileNotFoundError:
            return None
        if isinstance(status, ObjectStat):
            return version, status.version
        return version, status.st_ino, status.st_mtime_ns

    def _commit_file(self, version: int) -> LakePath:
        return self.path / "_delta_log" / f"{version:020}.json"

    def _layout(self, snapshot: Any) -> Layout | Refusal:
        metadata, protocol = snapshot.metadata(), snapshot.protocol()
        if self._layout_of is None or not (self._layout_of[0].equals(metadata) and self._layout_of[1].equals(protocol)):
            self._layout_of = (metadata, protocol, _layout_of(snapshot))
        return self._layout_of[2]

    def checkpoint(self) -> None:
        """Writes a checkpoint of the newest version."""
        self._log.update(False, self._java.none, self._java.none)
        self._log.checkpoint()

    def note(self, version: int | None) -> None:
        """Remembers the version that was committed; None if it is unknown."""
        self.committed, self._newest = version, None
        if version is not None:
            self._commits_since_listing += 1
            # Nothing may fail behind a commit. Without its file, the next transaction asks Delta.
            with suppress(Exception):
                self._newest = self._stat_commit(version)


class Transaction:
    """One attempt to commit to `target`, based on version `read_version`."""

    def __init__(
        self, target: Target, spark: SparkSession, java: Internals, txn: Any, snapshot: Any, layout: Layout
    ) -> None:
        self.target = target
        self.layout = layout
        self.read_version = int(snapshot.version())
        self._spark = spark
        self._java = java
        self._txn = txn
        self._snapshot = snapshot

    def last_batch(self, app_id: str) -> int:
        """Returns the newest batch of this `txnAppId` in the table, -1 if there is none.

        Reads it from the version's checksum if this process made the version, else from the whole log.
        """
        checksum = self._snapshot.checksumOpt() if self.target.committed == self.read_version else None
        if checksum is None or not checksum.isDefined():
            return int(self._txn.txnVersion(app_id))
        checksum_transactions = checksum.get().setTransactions()
        if not checksum_transactions.isDefined():
            return int(self._txn.txnVersion(app_id))
        transactions = checksum_transactions.get()
        for index in range(transactions.size()):
            if transactions.apply(index).appId() == app_id:
                return int(transactions.apply(index).version())
        return -1

    def files(self) -> list[StoredFile] | Refusal:
        """Returns the data files of the version that it read, by a small query of Spark."""
        rows = DataFrame(self._snapshot.allFiles().toDF(), self._spark).select("path", "size", "partitionValues")
        files = [StoredFile(row["path"], row["size"], dict(row["partitionValues"])) for row in rows.collect()]
        if outside := next((file.path for file in files if _is_elsewhere(file.logged_path)), None):
            return Refusal(f"its file {outside} does not lie in its own directory")
        return files

    def append(
        self, adds: list[dict[str, Any]], metadata: str, txn: tuple[str, int] | None, rows: int, reads: bool
    ) -> None:
        """Commits these files. metadata: the commit's `userMetadata`. txn: `txnAppId` and batch. rows: in all files.

        reads: the files depend on the table's rows, so that a concurrent commit that adds rows is a conflict.
        """
        java, none = self._java, self._java.none
        operation = java.write(java.append_mode, none, none, java.some(metadata), none, none, none, none, none)
        sizes = [add["size"] for add in adds]
        metrics = {"numFiles": len(adds), "numOutputRows": rows, "numOutputBytes": sum(sizes)}
        self._commit([{"add": add} for add in adds], operation, metrics, txn, reads)

    def replace(
        self,
        adds: list[dict[str, Any]],
        removes: list[dict[str, Any]],
        metadata: str,
        txn: tuple[str, int],
        metrics: dict[str, int],
    ) -> None:
        """Commits these files in place of others, as MERGE does. metadata, txn: as for `append`.

        metrics: the row counts of MERGE.
        """
        java, none, empty = self._java, self._java.none, self._java.to_seq(self._java.array_list())
        operation = java.stamped(java.merge(none, none, none, none, empty, empty, empty), metadata)
        actions = [*[{"remove": remove} for remove in removes], *[{"add": add} for add in adds]]
        file_metrics = {
            "numTargetFilesAdded": len(adds),
            "numTargetFilesRemoved": len(removes),
            "numTargetBytesAdded": sum(add["size"] for add in adds),
            "numTargetBytesRemoved": sum(remove["size"] for remove in removes),
        }
        self._commit(actions, operation, metrics | file_metrics, txn, reads=True)

    def compact(
        self, adds: list[dict[str, Any]], removes: list[dict[str, Any]], metadata: str, metrics: dict[str, int]
    ) -> None:
        """Commits these files in place of others with the same rows, as OPTIMIZE does. metadata: as for `append`."""
        java, empty = self._java, self._java.to_seq(self._java.array_list())
        operation = java.stamped(java.optimize(empty, empty, False, java.none, False), metadata)
        actions = [*[{"remove": remove} for remove in removes], *[{"add": add} for add in adds]]
        # Concurrent appends are no conflict; concurrent removals always are.
        self._commit(actions, operation, metrics, txn=None, reads=False)

    def _commit(
        self,
        actions: list[dict[str, Any]],
        operation: Any,
        metrics: dict[str, int],
        txn: tuple[str, int] | None,
        reads: bool,
    ) -> None:
        java, java_actions, java_metrics = self._java, self._java.array_list(), self._java.hash_map()
        if txn:
            # Reading the `txnAppId` makes a concurrent commit of the same batch a conflict.
            getattr(self._txn.readTxn(), "$plus$eq")(txn[0])
            now_ms = round(time.time() * 1000)
            actions = [*actions, {"txn": {"appId": txn[0], "version": txn[1], "lastUpdated": now_ms}}]
        if reads:
            self._txn.readWholeTable()
        for action in actions:
            java_actions.add(java.action.fromJson(json.dumps(action)))
        for name, value in metrics.items():
            metric = java.create_metric(self._spark._jsc.sc(), name)
            metric.set(value)
            java_metrics.put(name, metric)
        self._txn.registerSQLMetrics(self._spark._jsparkSession, java.to_map(java_metrics))
        self.target.note(None)
        self.target.is_unanswered = True
        version = int(self._txn.commit(java.to_seq(java_actions), operation))
        self.target.is_unanswered = False
        self.target.rows_written = sum(metrics.get(name, 0) for name in ROWS_WRITTEN)
        self.target.note(version)


def _is_elsewhere(logged_path: str) -> bool:
    return bool(urlsplit(logged_path).scheme) or logged_path.startswith("/")
