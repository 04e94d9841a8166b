"""Tells OpenLineage what each flow reads and writes: one COMPLETE event of the newest batch that it has committed, and
for each view one of its newest refresh.

What a job reads and writes comes from its declaration, and the numbers from the batch's commit: so nothing has to
watch the engine, and a MERGE has its output. A batch is a run, whose id follows from flow, generation and batch, so a
receiver that is told twice, because this process died in between, knows it. Batches between two tellings are not told.
"""

import json
import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import requests
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    documentation_dataset,
    documentation_job,
    job_type_job,
    output_statistics_output_dataset,
    ownership_dataset,
    ownership_job,
    schema_dataset,
    symlinks_dataset,
)
from openlineage.client.serde import Serde
from openlineage.client.transport.http import HttpConfig, HttpTransport

from include.catalog import Catalog
from include.errors import SluiceError, Unreachable
from include.readers import active_commits, checkpoint, refreshes
from include.readers.delta_log import Commit, Log
from include.retention import LINEAGE_BYTES
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table

NAMESPACE = "sluice"
PRODUCER = "sluice"
# Of everybody's commits: a flow that has none among so many has not moved for long, and was told of before.
RECENT_COMMITS = 200
# A receiver that is away is told a minute later.
HTTP = {"timeout": 5, "retry": {"total": 1, "backoff_factor": 0.1, "allowed_methods": ["POST"]}}

OF_FLOW, OF_VIEW = ("STREAMING", "SLUICE", "FLOW"), ("BATCH", "SLUICE", "VIEW")

Facets = dict[str, Any]


def tell(tables: Catalog, url: str | None = None) -> dict[str, str]:
    """By flow with a batch that was not told yet, that batch as `generation/batch`, in words where it cannot be; by
    view its refresh.

    url: of an OpenLineage receiver; without one `settings().lineage_url`, and without that, lines of JSON are added to
    `lineage/events.ndjson` below the home. Raises Unreachable where the receiver takes no event.
    """
    url = url or settings().lineage_url
    directory = settings().home / "lineage"
    directory.mkdir(parents=True, exist_ok=True)
    memory, to = directory / "told.json", url or "file"
    emit = _to(url) if url else _into(directory / "events.ndjson")
    told: dict[str, dict[str, str]] = json.loads(memory.read_text()) if memory.exists() else {}
    found: dict[str, str] = {}
    _columns.cache_clear()
    for flow in (*tables.flows.values(), *tables.views.values()):
        try:
            commit = _newest(flow)
            if commit is None or told.get(to, {}).get(flow.flow) == _batch(commit):
                continue
            event = event_of(flow, commit)
        except (SluiceError, DeltaError, OSError, KeyError) as error:
            found[flow.flow] = f"cannot be told: {error}"
            continue
        emit(event)
        told.setdefault(to, {})[flow.flow] = found[flow.flow] = _batch(commit)
        _write(memory, json.dumps(told))
    return found


def event_of(flow: Table, commit: Commit) -> RunEvent:
    """What the batch or refresh did that made this commit of its table. Raises Unreachable and Broken."""
    batch = f"{settings().table_path(flow.name)}/{flow.flow}/{_batch(commit)}"
    return RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=datetime.fromtimestamp(commit.timestamp, UTC).isoformat(),
        producer=PRODUCER,
        run=Run(runId=str(uuid.uuid5(uuid.NAMESPACE_URL, batch))),
        job=Job(namespace=NAMESPACE, name=flow.flow, facets=_of_job(flow)),
        inputs=_inputs(flow, commit),
        outputs=[_output(flow, commit)],
    )


def _newest(flow: Table) -> Commit | None:
    """The newest commit of a flow or a view; None where there is none yet."""
    if flow.is_view:
        done = refreshes.newest(flow.name)
        return done.commit if done else None
    if not settings().is_stored(flow.name):
        return None
    found = islice(active_commits.commits(Log(settings().table_path(flow.name))), RECENT_COMMITS)
    commits = (commit for commit, stands in found if stands)
    return next((one for one in commits if one.metadata.get("flow") == flow.flow and "batch" in one.metadata), None)


def _batch(commit: Commit) -> str:
    if refreshes.of_commit(commit):
        return f"refresh, version {commit.version}"
    return f"{commit.metadata['generation']}/{commit.metadata['batch']}"


def _of_job(flow: Table) -> Facets:
    facets: Facets = {
        "documentation": documentation_job.DocumentationJobFacet(flow.comment),
        "jobType": job_type_job.JobTypeJobFacet(*(OF_VIEW if flow.is_view else OF_FLOW)),
    }
    if flow.owner:
        facets["ownership"] = ownership_job.OwnershipJobFacet([ownership_job.Owner(flow.owner)])
    return facets


def _inputs(flow: Table, commit: Commit) -> list[InputDataset]:
    if refresh := refreshes.of_commit(commit):
        return [_table(table, version) for table, version in refresh.read.items()]
    end = commit.metadata.get("source_to")
    if isinstance(flow.source, Kafka):
        topics = list(end) if isinstance(end, dict) else flow.source.names
        server = settings().kafka.split(",")[0]
        return [InputDataset(namespace=f"kafka://{server}", name=topic) for topic in topics]
    if isinstance(flow.source, Files):
        return [InputDataset(*_place(settings().folder(flow.source.path)))]
    assert isinstance(flow.source, Delta)
    return [_table(flow.source.table, checkpoint.read_version(end) if end else None)]


def _table(table: str, version: int | None) -> InputDataset:
    return InputDataset(*_place(str(settings().table_path(table))), facets=_of_table(table, version))


def _output(flow: Table, commit: Commit) -> OutputDataset:
    facets = _of_table(flow.name, commit.version)
    facets["documentation"] = documentation_dataset.DocumentationDatasetFacet(flow.comment)
    if flow.owner:
        facets["ownership"] = ownership_dataset.OwnershipDatasetFacet([ownership_dataset.Owner(flow.owner)])
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        commit.rows, commit.bytes, commit.files
    )
    place = _place(str(settings().table_path(flow.name)))
    return OutputDataset(*place, facets=facets, outputFacets={"outputStatistics": statistics})


def _of_table(table: str, version: int | None) -> Facets:
    """Its name beside its path, the version, and the columns that it has now, with their comments."""
    name = symlinks_dataset.Identifier(NAMESPACE, table, "TABLE")
    facets: Facets = {"symlinks": symlinks_dataset.SymlinksDatasetFacet([name])}
    if version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(version))
    if settings().is_stored(table):
        facets["schema"] = schema_dataset.SchemaDatasetFacet(_columns(table))
    return facets


# The table that one flow writes, another one reads.
@cache
def _columns(table: str) -> list[schema_dataset.SchemaDatasetFacetFields]:
    columns = json.loads(DeltaTable(str(settings().table_path(table))).schema().to_json())["fields"]
    return [
        schema_dataset.SchemaDatasetFacetFields(one["name"], _type(one["type"]), one["metadata"].get("comment"))
        for one in columns
    ]


def _type(declared: Any) -> str:
    """Of a nested column, its kind alone."""
    return declared if isinstance(declared, str) else str(declared["type"])


def _place(path: str) -> tuple[str, str]:
    """Namespace and name, as OpenLineage has them for files and buckets."""
    scheme, _, rest = path.rpartition("://")
    if not scheme:
        return "file", path
    bucket, _, name = rest.partition("/")
    return f"{scheme}://{bucket}", name or "/"


def _into(file: Path) -> Callable[[RunEvent], None]:
    def emit(event: RunEvent) -> None:
        if file.exists() and file.stat().st_size > LINEAGE_BYTES:
            file.replace(file.with_suffix(".1.ndjson"))
        with file.open("a") as stream:
            stream.write(f"{Serde.to_json(event)}\n")

    return emit


def _to(url: str) -> Callable[[RunEvent], None]:
    # The key is no setting, as those may be shown.
    key = os.environ.get("OPENLINEAGE_API_KEY")
    auth = {"type": "api_key", "apiKey": key} if key else {}
    transport = HttpTransport(HttpConfig.from_dict({"url": url, "auth": auth, **HTTP}))

    def emit(event: RunEvent) -> None:
        try:
            transport.emit(event)
        except requests.RequestException as error:
            raise Unreachable(
                f"OPENLINEAGE_URL is {url}, which takes no event ({error}): start that receiver, or correct it"
            ) from error

    return emit


def _write(file: Path, text: str) -> None:
    """Whole or not at all."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)
