"""What lies in the local S3 store of a test."""

import json
import os
from typing import Any

import boto3
import pytest

from include.local import object_store
from include.local.object_store import ObjectStore


def skip_without_store() -> None:
    if not object_store.program().exists():
        pytest.skip("the local S3 store is not built: make store says why")


class Bucket:
    """A bucket of the store. client: boto3's client of S3. options: `storage_options` of delta-rs."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        store.create_bucket(name)
        self.store, self.name = store, name
        self.options = variables = store.client_variables()
        self.client = boto3.client(
            "s3",
            endpoint_url=store.endpoint,
            region_name=variables["AWS_REGION"],
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        )

    def url(self, key: str) -> str:
        return f"s3a://{self.name}/{key}"

    def commits(self, table: str) -> list[list[dict[str, Any]]]:
        """The actions of each version of the table with this key, in the order of versions."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=f"{table}/_delta_log/")
        keys = [item["Key"] for page in pages for item in page.get("Contents", ()) if item["Key"].endswith(".json")]
        bodies = [self.client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in keys]
        return [[json.loads(line) for line in body.decode().splitlines()] for body in bodies]


def process_environment(store: ObjectStore) -> dict[str, str]:
    """The environment of a child process that uses the store."""
    return {**os.environ, **store.client_variables()}
