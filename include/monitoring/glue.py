"""The Glue Data Catalog of AWS, or what speaks its API: entries of Delta tables, and the requests that read and write
them.

Trino, Athena, Redshift Spectrum and Spark find the table by the location in its entry, and read its log there. The
columns of the entry serve what reads no log: catalog browsers, Lake Formation and its filters.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore import session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from include.errors import SluiceError, Unreachable, UsageError
from include.spec import Table

Entry = dict[str, Any]

# What names the platform that registered a table. An entry without it belongs to somebody else.
OWNER_MARK = "sluice.platform"
# Each of these is what some reader takes a Delta table by: Spark and Trino the provider, others the type.
PARAMETERS = {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta", "table_type": "delta"}
# As Spark and Trino register a Delta table. Nothing is read by them, and some readers refuse an entry without any.
FORMAT = {
    "InputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
    "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
}
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
# Types of Delta that Hive, whose types Glue has, calls otherwise. It has none for VARIANT.
TYPES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "timestamp_ntz": "timestamp",
    "variant": "string",
}
# The limits of Glue. It refuses an entry with a longer text, or with a line break in a name or in a column's comment.
NAME_BYTES, COLUMN_COMMENT_BYTES, DESCRIPTION_BYTES = 255, 255, 2048
# The supervisor waits for it, and asks again a minute later.
CONFIG = Config(connect_timeout=3, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2})
NOT_FOUND = "EntityNotFoundException"
REFUSED_STATUS = (401, 403)
REFUSED_CODES = (
    *("AccessDenied", "AccessDeniedException", "ExpiredTokenException", "IncompleteSignature", "InvalidClientTokenId"),
    *("InvalidSignatureException", "MissingAuthenticationToken", "SignatureDoesNotMatch"),
    "UnrecognizedClientException",
)


class EntryRefused(SluiceError):
    """The catalog answers, and does not take one entry, or has none of this name. code: of its error."""

    def __init__(self, sentence: str, code: str) -> None:
        super().__init__(sentence)
        self.code = code


class Glue:
    """A client for the region and with the credentials of the `AWS_*` variables, as other programs take them.

    Raises UsageError without a region. Methods raise Unreachable, and EntryRefused.
    """

    def __init__(self) -> None:
        # botocore alone reads only AWS_DEFAULT_REGION, and the other libraries both.
        region = os.environ.get("AWS_REGION") or None
        try:
            self._client = session.get_session().create_client("glue", region_name=region, config=CONFIG)
        except NoRegionError:
            raise UsageError("SLUICE_CATALOG is glue, and no region is set: set AWS_REGION") from None
        except (BotoCoreError, ValueError) as error:
            raise UsageError(
                f"SLUICE_CATALOG is glue, whose client cannot start ({type(error).__name__}): check the AWS_* variables"
            ) from None
        self.url = str(self._client.meta.endpoint_url)

    def tables(self, database: str) -> dict[str, Entry]:
        """Returns the entries of a database by name of the table; none where there is no such database."""
        entries: dict[str, Entry] = {}
        try:
            with self._asked("GetTables"):
                for page in self._client.get_paginator("get_tables").paginate(DatabaseName=database):
                    if "TableList" not in page:
                        raise self._away("answers GetTables as no catalog does")
                    entries |= {entry["Name"]: entry for entry in page["TableList"]}
        except EntryRefused as refusal:
            if refusal.code != NOT_FOUND:
                raise Unreachable(str(refusal)) from None
        return entries

    def create(self, database: str, entry: Entry) -> None:
        """Creates the entry of a table, and the database if it is missing."""
        try:
            self._create(database, entry)
        except EntryRefused as refusal:
            if refusal.code != NOT_FOUND:
                raise
            with self._asked("CreateDatabase"):
                self._client.create_database(DatabaseInput={"Name": database})
            self._create(database, entry)

    def _create(self, database: str, entry: Entry) -> None:
        with self._asked("CreateTable"):
            self._client.create_table(DatabaseName=database, TableInput=entry)

    def update(self, database: str, entry: Entry) -> None:
        """Replaces the entry of a table. Glue keeps no old version of it: the table's log has the history."""
        with self._asked("UpdateTable"):
            self._client.update_table(DatabaseName=database, TableInput=entry, SkipArchive=True)

    @contextmanager
    def _asked(self, operation: str) -> Iterator[None]:
        # Only codes and kinds: a message may hold what was sent.
        try:
            yield
        except NoCredentialsError:
            raise UsageError(
                "SLUICE_CATALOG is glue, and there are no credentials of AWS: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or give this machine a role"
            ) from None
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if code in REFUSED_CODES or status in REFUSED_STATUS:
                raise EntryRefused(
                    f"the catalog at {self.url} refuses the credentials ({code or status}): renew them, permit them "
                    f"glue:{operation}, or correct AWS_ENDPOINT_URL_GLUE",
                    code,
                ) from None
            if not code.endswith("Exception"):
                raise self._away(f"answers {operation} with {code or status}") from None
            raise EntryRefused(f"the catalog at {self.url} answers {operation} with {code}", code) from None
        except BotoCoreError as error:
            raise self._away(f"does not answer ({type(error).__name__})") from None

    def _away(self, problem: str) -> Unreachable:
        return Unreachable(
            f"the catalog at {self.url} {problem}: check AWS_ENDPOINT_URL_GLUE and AWS_REGION; tables keep their names "
            f"there"
        )


def entry(table: Table, location: str, columns: list[dict[str, Any]], platform: str) -> Entry:
    """Returns the entry of a table, as Glue takes it. location: a URL. columns: `fields` of the schema in Delta's JSON.

    Partition columns are columns like others: readers would look for partitions in the catalog, where a Delta table has
    none. Athena asks for an empty list of them.
    """
    texts = {"Description": _cut(table.comment, DESCRIPTION_BYTES), "Owner": _cut(table.owner or "", NAME_BYTES)}
    return {
        "Name": table.name.partition(".")[2],
        **{key: text for key, text in texts.items() if text},
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**PARAMETERS, OWNER_MARK: platform},
        "PartitionKeys": [],
        "StorageDescriptor": {
            "Columns": [_column(column) for column in columns],
            "Location": location,
            **FORMAT,
            # Trino and Spark read the location here.
            "SerdeInfo": {"SerializationLibrary": SERDE, "Parameters": {"path": location, "serialization.format": "1"}},
        },
    }


def kept(stored: Entry, new: Entry) -> Entry:
    """Returns the new entry of a table with the parameters that others have added to the stored one."""
    return {**new, "Parameters": {**(stored.get("Parameters") or {}), **new["Parameters"]}}


def location_of(stored: Entry) -> str:
    return str((stored.get("StorageDescriptor") or {}).get("Location") or "").rstrip("/")


def differences(stored: Entry, new: Entry) -> list[str]:
    """Returns in which parts a stored entry is not as the new one, in words."""
    have, want = _parts(stored), _parts(new)
    return [part for part in want if have[part] != want[part]]


def _parts(stored: Entry) -> dict[str, Any]:
    storage = stored.get("StorageDescriptor") or {}
    serde = storage.get("SerdeInfo") or {}
    parameters = stored.get("Parameters") or {}
    columns = [
        (column["Name"], column.get("Type"), column.get("Comment") or "") for column in storage.get("Columns") or []
    ]
    return {
        "comment": stored.get("Description") or "",
        "owner": stored.get("Owner") or "",
        "columns": [(name, declared) for name, declared, _ in columns],
        "comments of columns": [comment for _, _, comment in columns],
        "parameters": [parameters.get(name) for name in PARAMETERS],
        "format": [storage.get("InputFormat"), storage.get("OutputFormat"), serde.get("SerializationLibrary")],
        "path": (serde.get("Parameters") or {}).get("path"),
        "partition keys": stored.get("PartitionKeys") or [],
    }


def _column(field: dict[str, Any]) -> dict[str, str]:
    comment = _cut(" ".join(str(field["metadata"].get("comment") or "").split()), COLUMN_COMMENT_BYTES)
    return {"Name": field["name"], "Type": hive_type(field["type"]), **({"Comment": comment} if comment else {})}


def hive_type(declared: Any) -> str:
    """Returns the type of Hive for one of Delta, in the form of its schemas in JSON."""
    if isinstance(declared, str):
        return TYPES.get(declared, declared)
    if declared["type"] == "array":
        return f"array<{hive_type(declared['elementType'])}>"
    if declared["type"] == "map":
        return f"map<{hive_type(declared['keyType'])},{hive_type(declared['valueType'])}>"
    fields = (f"{field['name']}:{hive_type(field['type'])}" for field in declared["fields"])
    return f"struct<{','.join(fields)}>"


def _cut(text: str, most_bytes: int) -> str:
    return text.encode()[:most_bytes].decode(errors="ignore").strip()
