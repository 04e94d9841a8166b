"""Progress reports of queries, as Spark 4.2 writes them, and as drivers journal them."""

import json
from datetime import UTC, datetime, timedelta

FLOW = "silver.tracker_readings"
# Old reports are deleted, so the reports of the tests are of today.
NOW = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)


def report(batch: int, start: datetime = NOW, **fields: object) -> dict:
    """The progress report of a batch from Kafka, as Spark 4.2 writes it."""
    return {
        "id": "9db2f8f0-a424-4094-93bf-bd383eefd5ab",
        "runId": "f39ba1d0-cb89-4d9e-a0d3-cb65d2acb5ba",
        "name": FLOW,
        "timestamp": f"{start + timedelta(seconds=batch):%Y-%m-%dT%H:%M:%S.000Z}",
        "batchId": batch,
        "numInputRows": 100,
        "inputRowsPerSecond": 93.4,
        "processedRowsPerSecond": 70.5,
        "durationMs": {
            "addBatch": 1191,
            "commitOffsets": 33,
            "getBatch": 4,
            "latestOffset": 5,
            "queryPlanning": 133,
            "triggerExecution": 1429,
            "walCommit": 68,
        },
        "stateOperators": [],
        "sources": [
            {
                "description": "KafkaV2[Subscribe[tracker_events]]",
                "startOffset": {"tracker_events": {"0": batch * 100}},
                "endOffset": {"tracker_events": {"0": batch * 100 + 100}},
                "latestOffset": {"tracker_events": {"0": 1000}},
                "numInputRows": 100,
                "metrics": {"maxOffsetsBehindLatest": "900"},
            }
        ],
        "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
        **fields,
    }


def line(progress: dict, kind: str = "report", flow: str = FLOW, **fields: object) -> str:
    return json.dumps({"driver": "main", "flow": flow, "generation": 2, kind: json.dumps(progress), **fields})
