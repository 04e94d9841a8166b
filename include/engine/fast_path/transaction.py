"""Commits data files to a stored table by Delta's own transaction, without a Spark query.

A DataFrame write, a MERGE or an OPTIMIZE plans several queries for each commit, many times what a small batch needs.
All end in this transaction, which checks for conflicts and writes the checksum and the checkpoints.
"""

import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from include.engine.fast_path.features import Layout, layout
from include.engine.fast_path.internals import Internals, internals
from include.settings import settings


class Target:
    """A stored table that one flow commits to.

    committed: the newest version that was committed here; None before the first commit and after a failed one.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        self.path = str(settings().table_path(name))
        self.committed: int | None = None
        self._spark = spark
        self._java = internals(spark.sparkContext)
        self._log = self._java.delta_log.forTable(spark._jsparkSession, self.path)
        self._checked: tuple[Any, Any, Layout] | None = None
        self._newest: tuple[int, int, int] | None = None

    def begin(self) -> "Transaction":
        """A transaction on the newest version. Raises `features.Refused` where this path must not write the table."""
        snapshot = self._snapshot()
        begun = self._log.startTransaction(self._java.none, self._java.some(snapshot))
        return Transaction(self, self._spark, self._java, begun, snapshot, self._layout(snapshot))

    def _snapshot(self) -> Any:
        """Delta would list its log, which takes ever longer; whether a commit has been added costs one look."""
        snapshot = self._log.unsafeVolatileSnapshot()
        version = int(snapshot.version())
        if self._newest is None or self._stat(version) != self._newest or self._file(version + 1).exists():
            snapshot = self._log.update(False, self._java.none, self._java.none)
            self._newest = self._stat(int(snapshot.version()))
        return snapshot

    def _stat(self, version: int) -> tuple[int, int, int] | None:
        try:
            found = self._file(version).stat()
        except FileNotFoundError:
            return None
        return version, found.st_ino, found.st_mtime_ns

    def _file(self, version: int) -> Path:
        return Path(self.path, "_delta_log", f"{version:020}.json")

    def _layout(self, snapshot: Any) -> Layout:
        metadata, protocol = snapshot.metadata(), snapshot.protocol()
        if self._checked is None or not (self._checked[0].equals(metadata) and self._checked[1].equals(protocol)):
            found = layout(json.loads(metadata.json())["metaData"], json.loads(protocol.json())["protocol"])
            self._checked = (metadata, protocol, found)
        return self._checked[2]

    def note(self, version: int | None) -> None:
        """Remember what was committed; None: nobody knows."""
        self.committed = version
        self._newest = None if version is None else self._stat(version)


class Transaction:
    """One attempt to commit to `target`, based on version `read_version`."""

    def __init__(
        self, target: Target, spark: SparkSession, java: Internals, begun: Any, snapshot: Any, layout: Layout
    ) -> None:
        self.target = target
        self.layout = layout
        self.read_version = int(snapshot.version())
        self._spark = spark
        self._java = java
        self._begun = begun
        self._snapshot = snapshot

    def last_batch(self, app_id: str) -> int:
        """The newest batch that the table holds of this transaction id, -1 for none.

        Out of the version's checksum where this process made the version; otherwise out of the whole log.
        """
        checksum = self._snapshot.checksumOpt() if self.target.committed == self.read_version else None
        if checksum is None or not checksum.isDefined():
            return int(self._begun.txnVersion(app_id))
        known = checksum.get().setTransactions()
        if not known.isDefined():
            return int(self._begun.txnVersion(app_id))
        transactions = known.get()
        for place in range(transactions.size()):
            if transactions.apply(place).appId() == app_id:
                return int(transactions.apply(place).version())
        return -1

    def append(
        self, adds: list[dict[str, Any]], stamp: str, txn: tuple[str, int] | None, rows: int, reads: bool
    ) -> None:
        """Commit these files. stamp: the commit's `userMetadata`. txn: id and batch of the flow. rows: in all files.

        reads: the files were made from what the table holds, so a commit in between that adds rows is a conflict.
        """
        java, none = self._java, self._java.none
        operation = java.write(java.append_mode, none, none, java.some(stamp), none, none, none, none, none)
        sizes = [add["size"] for add in adds]
        metrics = {"numFiles": len(adds), "numOutputRows": rows, "numOutputBytes": sum(sizes)}
        self._commit([{"add": add} for add in adds], operation, metrics, txn, reads)

    def replace(
        self,
        adds: list[dict[str, Any]],
        removes: list[dict[str, Any]],
        txn: tuple[str, int],
        metrics: dict[str, int],
    ) -> None:
        """Commit these files in place of others, as a MERGE does. It is stamped by the session's setting.

        metrics: of a MERGE, those that count rows.
        """
        java, none, empty = self._java, self._java.none, self._java.to_seq(self._java.array_list())
        operation = java.merge(none, none, none, none, empty, empty, empty)
        actions = [*[{"remove": remove} for remove in removes], *[{"add": add} for add in adds]]
        counted = {
            "numTargetFilesAdded": len(adds),
            "numTargetFilesRemoved": len(removes),
            "numTargetBytesAdded": sum(add["size"] for add in adds),
            "numTargetBytesRemoved": sum(remove["size"] for remove in removes),
        }
        self._commit(actions, operation, metrics | counted, txn, reads=True)

    def compact(self, adds: list[dict[str, Any]], removes: list[dict[str, Any]], metrics: dict[str, int]) -> None:
        """Commit these files in place of others with the same rows, as OPTIMIZE does, with the session's stamp."""
        java, empty = self._java, self._java.to_seq(self._java.array_list())
        operation = java.optimize(empty, empty, False, java.none, False)
        actions = [*[{"remove": remove} for remove in removes], *[{"add": add} for add in adds]]
        # Rows that others add meanwhile are no conflict; a file that others remove is one in any case.
        self._commit(actions, operation, metrics, txn=None, reads=False)

    def _commit(
        self,
        actions: list[dict[str, Any]],
        operation: Any,
        metrics: dict[str, int],
        txn: tuple[str, int] | None,
        reads: bool,
    ) -> None:
        java, given, counted = self._java, self._java.array_list(), self._java.hash_map()
        if txn:
            # Another driver that commits the same batch meanwhile is a conflict.
            getattr(self._begun.readTxn(), "$plus$eq")(txn[0])
            now_ms = round(time.time() * 1000)
            actions = [*actions, {"txn": {"appId": txn[0], "version": txn[1], "lastUpdated": now_ms}}]
        if reads:
            self._begun.readWholeTable()
        for action in actions:
            given.add(java.action.fromJson(json.dumps(action)))
        for name, value in metrics.items():
            metric = java.create_metric(self._spark._jsc.sc(), name)
            metric.set(value)
            counted.put(name, metric)
        self._begun.registerSQLMetrics(self._spark._jsparkSession, java.to_map(counted))
        self.target.note(None)
        self.target.note(int(self._begun.commit(java.to_seq(given), operation)))
