"""The schemas of a registry that the plan of a flow reads, and which batches need another plan."""

from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from include import catalog
from include.checkpoints import checkpoint_files
from include.delta import stored_table
from include.engine.batch import writer_schemas
from include.engine.batch.schema_registry import HEADER_BYTES
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.fast_path.features import NotSupported
from include.engine.fast_path.source import Source
from include.errors import FlowBroken
from include.spec import Avro, Delta, Json, Kafka, Table

# The column of `KAFKA_SCHEMA_WITH_IDS`.
ID_COLUMN = "schema_id"
# By flow, the ids that this process has read. A new plan knows them all.
_known_ids: dict[str, set[int]] = {}


class FlowSchemas:
    """Finds the schema ids of each batch in the files of its source, without a Spark job.

    table: the table whose `parse` has the schemas of all ids that the flow has read in this process.
    """

    def __init__(self, table: Table, parse: Avro | Json, source: Delta, flow_checkpoint: Checkpoint) -> None:
        self._declared = table
        self._parse = parse
        self._source_table = source.table
        self._source = Source(table)
        self._path = flow_checkpoint.path
        self._has_ids = _has_ids(source)
        ids = set(_known_ids.get(table.flow, ()))
        # Probably all that the next batches have: those of the last batch, and of one that is planned.
        for batch in (flow_checkpoint.written, flow_checkpoint.written + 1):
            with suppress(FlowBroken, OSError):
                ids |= self._ids_of_batch(batch)
        self._learn(ids)

    @property
    def table(self) -> Table:
        return replace(self._declared, parse=self._parse)

    def needs_new_plan(self, batch: int) -> bool:
        """Whether the batch has a schema that the plan lacks. Raises RegistryUnreachable."""
        return self._learn(self._ids_of_batch(batch))

    def _learn(self, ids: set[int]) -> bool:
        """Adds the schemas of these ids; returns whether one is new."""
        before = len(self._parse.schemas)
        self._parse = writer_schemas.with_schemas(self._parse, ids)
        _known_ids[self._declared.flow] = set(self._parse.schemas)
        return len(self._parse.schemas) > before

    def _ids_of_batch(self, batch: int) -> set[int]:
        begin, end = checkpoint_files.end_offset(self._path, batch - 1), checkpoint_files.end_offset(self._path, batch)
        if end is None:
            return set()
        try:
            paths = [file.path for file in self._source.between(begin, end).files]
        except NotSupported:
            # Ids of other batches do no harm.
            paths = [fragment.path for fragment in stored_table.dataset(self._source_table).get_fragments()]
        file_system = stored_table.file_system(self._source_table)
        ids: set[int] = set()
        for path in paths:
            with file_system.open_input_file(path) as file:
                ids |= self._ids_of(pq.ParquetFile(file))
        return ids

    def _ids_of(self, file: pq.ParquetFile) -> set[int]:
        if self._has_ids and ID_COLUMN in file.schema_arrow.names:
            ids = pc.unique(file.read([ID_COLUMN]).column(ID_COLUMN)).to_pylist()
            if None not in ids:
                return set(ids)
        # Rows from before the source had the column may have an id, too.
        values = file.read([self._parse.column]).column(self._parse.column)
        heads = pc.unique(pc.binary_slice(values.cast(pa.binary()), 0, HEADER_BYTES)).to_pylist()
        return {
            schema_id
            for head in heads
            if head and head[0] == 0 and len(head) == HEADER_BYTES
            if (schema_id := int.from_bytes(head[1:], "big")) < 2**31
        }


def of(table: Table, flow_checkpoint: Checkpoint) -> FlowSchemas | None:
    """Returns the schemas of a flow; None if its table has no registry, or if its batches are not whole files."""
    if not uses_registry(table) or table.steps or not isinstance(table.source, Delta) or table.source.changes:
        return None
    assert isinstance(table.parse, Avro | Json)
    return FlowSchemas(table, table.parse, table.source, flow_checkpoint)


def uses_registry(table: Table) -> bool:
    return isinstance(table.parse, Avro | Json) and table.parse.registry is not None


def _has_ids(source: Delta) -> bool:
    """Whether the source keeps the id of each value in a column."""
    declared = catalog.load().tables.get(source.table)
    return bool(declared and isinstance(declared.source, Kafka) and declared.source.schema_ids)
