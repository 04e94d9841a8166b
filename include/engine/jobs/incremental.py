"""Computes what a refresh writes: where the view allows it, from the rows that were appended to its tables alone."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from include.delta import stored_table
from include.delta.commit_history import Action, RecomputeNeeded, appended_files
from include.delta.delta_log import DeltaLog
from include.engine import commit, struct_type
from include.engine.checkpoints import definition
from include.engine.commit import read_table
from include.engine.jobs.incremental_plan import ViewPlan
from include.engine.rows import storable, transform
from include.engine.session import jvm_of
from include.engine.tables import create_table
from include.flows.refreshes import Method, Refresh, untouched
from include.lake import locations
from include.spec import Table

# Delta leaves out a commit without rows, and every refresh has one.
EMPTY_COMMITS = {"spark.databricks.delta.skipRecordingEmptyCommits": "false"}

# Begins each hash of a definition. It changes with what a hash is made of, so that two forms are never compared.
FORM = "plan-2:"


@dataclass(frozen=True)
class Change:
    """What a refresh writes. rows: before its rules are applied. method: without counts.

    base: the refresh to whose rows these are added; None if they replace all rows.
    """

    rows: DataFrame
    method: Method
    base: Refresh | None = None

    def write(self, view: Table, rows: DataFrame, count: int) -> None:
        """Commits the rows that are left of `rows`. count: how many. It fails if a row has a value that no table may
        store.
        """
        rows = storable.guarded(_in_columns_of(view, rows), storable.rules_by_column(view))
        if self.base is None:
            create_table.replace(rows, view)
        else:
            commit.append(transform.coalesce_small(rows, count), view)


class Computation:
    """Computes a view from its tables at these versions. compute: its rows from those of its tables, by name."""

    def __init__(
        self,
        spark: SparkSession,
        view: Table,
        versions: Mapping[str, int],
        compute: Callable[[Mapping[str, DataFrame]], DataFrame],
    ) -> None:
        self._spark, self._view, self._versions, self._compute = spark, view, versions, compute
        # Unknown for a plan that cannot be incremental.
        self._definition = ""
        self.tables = {table: read_table(spark, table, version) for table, version in versions.items()}

    def change(self) -> Change:
        try:
            return self._incremental()
        except RecomputeNeeded as reason:
            return Change(self._compute(self.tables), self._method(str(reason)))

    def _incremental(self) -> Change:
        """Raises RecomputeNeeded."""
        if any(source.is_pinned for source in self._view.upstream):
            raise RecomputeNeeded("it reads a table as of a version")
        schemas = {table: rows.schema for table, rows in self.tables.items()}
        plan = ViewPlan(self._spark, schemas, self._compute)
        # The transform counts by its plan, which shows what it calls in other files, too.
        declared = f"{definition.declared(self._view)}\n{plan.text}"
        self._definition = FORM + hashlib.sha256(declared.encode()).hexdigest()
        self._require_groups_kept(plan)
        base, base_method, version = untouched(self._view.name)
        if base_method.definition and not base_method.definition.startswith(FORM):
            raise RecomputeNeeded("an earlier release recorded its definition in another form")
        if base_method.definition != self._definition:
            raise RecomputeNeeded("its definition has changed")
        appended = self._appended(base, base_method)
        if not any(appended.values()):
            nothing = self._spark.createDataFrame([], struct_type.from_ddl(self._view.schema))
            return Change(nothing, self._method(None, version), base)
        new_only = plan.tables_to_read_appended({table for table, files in appended.items() if files})
        rows = self._compute(
            {
                table: _rows_of_files(rows, appended[table]) if table in new_only else rows
                for table, rows in self.tables.items()
            }
        )
        if plan.grouping is None:
            return Change(rows, self._method(None, version), base)
        rows = _in_columns_of(self._view, rows)
        stored = read_table(self._spark, self._view.name, version)
        return Change(plan.grouping.combined(stored.unionByName(rows)), self._method(None))

    def _require_groups_kept(self, plan: ViewPlan) -> None:
        """Raises RecomputeNeeded if stored rows of an aggregate are not all of its results, exact to the last digit."""
        if plan.grouping is None:
            return
        if any(rule.otherwise == "drop" for rule in self._view.expect):
            raise RecomputeNeeded("its rules may drop groups to which rows are added later")
        declared = struct_type.from_ddl(self._view.schema)
        if [field.dataType.simpleString() for field in plan.schema] != [
            field.dataType.simpleString() for field in declared
        ]:
            raise RecomputeNeeded("its columns have other types than its transform makes")

    def _appended(self, base: Refresh, base_method: Method) -> dict[str, list[Action]]:
        """Returns the files appended to each table since a refresh. Raises RecomputeNeeded."""
        if others := [name for name, table_id in self._table_ids.items() if base_method.table_ids[name] != table_id]:
            raise RecomputeNeeded(f"{others[0]} was replaced as a whole")
        return {
            table: appended_files(DeltaLog(locations.table_path(table)), table, base.read[table], version)
            for table, version in self._versions.items()
        }

    def _method(self, recomputed: str | None, based_on: int | None = None) -> Method:
        return Method(self._definition, self._table_ids, recomputed, based_on)

    @cached_property
    def _table_ids(self) -> dict[str, str]:
        return {table: str(stored_table.open_table(table).metadata().id) for table in self._versions}


def _in_columns_of(view: Table, rows: DataFrame) -> DataFrame:
    """Returns these rows in the declared types."""
    # A plan rarely shows that a column holds no NULL, and Spark takes no other one for NOT NULL. Rules check the rows.
    return rows.to(struct_type.from_ddl(view.schema).toNullable())


def _rows_of_files(table: DataFrame, adds: Iterable[Action]) -> DataFrame:
    """Returns the rows of these files. table: all rows of their table at a version. adds: `add` actions of its log."""
    spark = table.sparkSession
    jvm = jvm_of(spark)
    index: Any = table._jdf.queryExecution().analyzed().relation().location()
    action = jvm.org.apache.spark.sql.delta.actions.Action
    files = jvm.PythonUtils.toSeq([action.fromJson(json.dumps(add)) for add in adds])
    rows = index.deltaLog().createDataFrame(index.getSnapshot(), files, False, jvm.scala.Option.empty())
    return DataFrame(rows, spark)
