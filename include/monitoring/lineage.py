"""Sends OpenLineage events: a COMPLETE event for each flow's newest committed batch and for each view's newest refresh.

Inputs and outputs come from the declarations, numbers from the commits, so nothing has to observe the engine. A batch
is a run. The run id derives from flow, generation and batch, so a receiver recognizes an event that is sent twice.
Batches between two calls are not reported.
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
from include.checkpoints import checkpoint_files
from include.delta import commit_history, stored_table
from include.delta.delta_log import Commit
from include.delta.table_logs import TableLogs
from include.errors import SluiceError, Unreachable
from include.flows import refreshes, sources
from include.lake import locations
from include.retention import LINEAGE_BYTES
from include.settings import settings
from include.spec import Flow, Table

NAMESPACE = "sluice"
PRODUCER = "sluice"
# The number of commits to search. A flow without one of them has been idle for long, and was reported before.
RECENT_COMMITS = 200
# An event that fails is sent again by the next call, a minute later.
HTTP = {"timeout": 5, "retry": {"total": 1, "backoff_factor": 0.1, "allowed_methods": ["POST"]}}

OF_FLOW, OF_VIEW = ("STREAMING", "SLUICE", "FLOW"), ("BATCH", "SLUICE", "VIEW")

Facets = dict[str, Any]


def emit_events(tables: Catalog, url: str | None = None, logs: TableLogs | None = None) -> dict[str, str]:
    """Sends the events that were not sent yet. Returns, by flow or view, the batch or refresh, or why it cannot be
    reported.

    url: of an OpenLineage receiver, by default `settings().lineage_url`. Without a URL, JSON lines are appended to
    `lineage/events.ndjson` in the home directory. Raises Unreachable where the receiver rejects an event.
    logs: by a caller who has looked at them already.
    """
    logs = logs or TableLogs()
    url = url or settings().lineage_url
    directory = settings().home / "lineage"
    directory.mkdir(parents=True, exist_ok=True)
    sent_file, receiver = directory / "told.json", url or "file"
    emit = _http_emitter(url) if url else _file_emitter(directory / "events.ndjson")
    sent_batches: dict[str, dict[str, str]] = json.loads(sent_file.read_text()) if sent_file.exists() else {}
    outcomes: dict[str, str] = {}
    _columns.cache_clear()
    for name, flow in (*tables.flows.items(), *tables.views.items()):
        try:
            commit = _newest_commit(name, flow, logs)
            if commit is None or sent_batches.get(receiver, {}).get(name) == _batch_name(commit):
                continue
            event = event_of(name, flow, commit)
        except (SluiceError, DeltaError, OSError, KeyError) as error:
            outcomes[name] = f"cannot be sent: {error}"
            continue
        emit(event)
        sent_batches.setdefault(receiver, {})[name] = outcomes[name] = _batch_name(commit)
        _replace_file(sent_file, json.dumps(sent_batches))
    return outcomes


def event_of(name: str, flow: Table, commit: Commit) -> RunEvent:
    """Returns the event of the batch or refresh that made this commit. name: of the flow or view.

    Raises Unreachable and FlowBroken.
    """
    batch = f"{locations.table_path(flow.name)}/{name}/{_batch_name(commit)}"
    return RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=datetime.fromtimestamp(commit.timestamp, UTC).isoformat(),
        producer=PRODUCER,
        run=Run(runId=str(uuid.uuid5(uuid.NAMESPACE_URL, batch))),
        job=Job(namespace=NAMESPACE, name=name, facets=_of_job(flow)),
        inputs=_inputs(flow, commit),
        outputs=[_output(flow, commit)],
    )


def _newest_commit(name: str, flow: Table, logs: TableLogs) -> Commit | None:
    """Returns the newest commit of a flow or a view; None before the first."""
    if flow.is_view:
        refresh = refreshes.newest(flow.name)
        return refresh.commit if refresh else None
    if (log := logs.find(flow.name)) is None:
        return None
    recent_commits = islice(commit_history.commits_with_activity(log), RECENT_COMMITS)
    commits = (commit for commit, is_active in recent_commits if is_active)
    return next(
        (commit for commit in commits if commit.metadata.get("flow") == name and "batch" in commit.metadata), None
    )


def _batch_name(commit: Commit) -> str:
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
        return [_table(table, version) for table, version in refresh.all_read]
    assert isinstance(flow, Flow), f"version {commit.version} of {flow.name} is no refresh"
    looked_up = (commit.metadata.get("lookups") or {}).items()
    offset = commit.metadata.get("source_to")
    version = checkpoint_files.read_version(offset) if offset and flow.source.reads_table else None
    facets = _of_table(flow.source.table, version) if flow.source.table else {}
    return [
        *(InputDataset(*_dataset_name(uri), facets=facets) for uri in sources.of(flow).datasets(offset)),
        *(_table(table, version) for table, version in looked_up),
    ]


def _table(table: str, version: int | None) -> InputDataset:
    return InputDataset(*_dataset_name(str(locations.table_path(table))), facets=_of_table(table, version))


def _output(flow: Table, commit: Commit) -> OutputDataset:
    facets = _of_table(flow.name, commit.version)
    facets["documentation"] = documentation_dataset.DocumentationDatasetFacet(flow.comment)
    if flow.owner:
        facets["ownership"] = ownership_dataset.OwnershipDatasetFacet([ownership_dataset.Owner(flow.owner)])
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        commit.rows, commit.bytes, commit.files
    )
    place = _dataset_name(str(locations.table_path(flow.name)))
    return OutputDataset(*place, facets=facets, outputFacets={"outputStatistics": statistics})


def _of_table(table: str, version: int | None) -> Facets:
    """Returns the facets of a table: its name, the version, and its current columns with comments."""
    name = symlinks_dataset.Identifier(NAMESPACE, table, "TABLE")
    facets: Facets = {"symlinks": symlinks_dataset.SymlinksDatasetFacet([name])}
    if version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(version))
    if locations.is_stored(table):
        facets["schema"] = schema_dataset.SchemaDatasetFacet(_columns(table))
    return facets


# Cached, because a table is the output of one flow and the input of others.
@cache
def _columns(table: str) -> list[schema_dataset.SchemaDatasetFacetFields]:
    columns = json.loads(stored_table.open_table(table).schema().to_json())["fields"]
    return [
        schema_dataset.SchemaDatasetFacetFields(
            column["name"], _type(column["type"]), column["metadata"].get("comment")
        )
        for column in columns
    ]


def _type(declared: Any) -> str:
    """Returns the type name. A nested type is reduced to its kind."""
    return declared if isinstance(declared, str) else str(declared["type"])


def _dataset_name(path: str) -> tuple[str, str]:
    """Returns namespace and name, as OpenLineage specifies them for files and buckets."""
    scheme, _, rest = path.rpartition("://")
    if not scheme:
        return "file", path
    bucket, _, name = rest.partition("/")
    return f"{scheme}://{bucket}", name or "/"


def _file_emitter(file: Path) -> Callable[[RunEvent], None]:
    def emit(event: RunEvent) -> None:
        if file.exists() and file.stat().st_size > LINEAGE_BYTES:
            file.replace(file.with_suffix(".1.ndjson"))
        with file.open("a") as stream:
            stream.write(f"{Serde.to_json(event)}\n")

    return emit


def _http_emitter(url: str) -> Callable[[RunEvent], None]:
    # Settings may be displayed, so the key is not one of them.
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


def _replace_file(file: Path, text: str) -> None:
    """Replaces a file atomically."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)
