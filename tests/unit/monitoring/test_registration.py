"""The names of tables in a Glue catalog: a server with its API is asked, and readers that have no Spark."""

import json
import re

import duckdb
import pyarrow as pa
import pytest
from botocore import session
from deltalake import DeltaTable, write_deltalake
from moto.core.authorization import enable_iam_authentication

from include import catalog as catalogs
from include.catalog import Catalog
from include.cli import exports
from include.control.store import database, schema
from include.delta import stored_table
from include.errors import Unreachable, UsageError
from include.lake import clients, locations
from include.monitoring import glue, registration
from include.monitoring.registration import Registration, State
from include.settings import settings
from include.spec import Delta, Table
from tests.conftest import free_port

ROWS = {"id": [1, 2, 3], "name": ["a", "b", "c"]}


def declared(name: str, comment: str = "one row per day", **fields: object) -> Table:
    return Table(name=name, source=Delta("bronze.events"), comment=comment, **fields)


def catalog(*tables: Table, **fields: object) -> Catalog:
    return Catalog({table.name: table for table in tables}, **fields)


GOLD, SILVER, BRONZE = declared("gold.sums", owner="team-x"), declared("silver.readings"), declared("bronze.events")
TABLES = catalog(BRONZE, SILVER, GOLD)


LOADER = session.get_session().get_component("data_loader")
get_component = session.Session.get_component


def component(botocore: session.Session, name: str) -> object:
    return LOADER if name == "data_loader" else get_component(botocore, name)


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """On a busy machine, the server of the tests takes longer for an answer than a supervisor waits.

    A supervisor makes one client, and these tests fifty: they read the description of the API once.
    """
    monkeypatch.setattr(glue, "CONFIG", glue.Config(read_timeout=60, retries={"total_max_attempts": 1}))
    monkeypatch.setattr(glue.session.Session, "get_component", component)


@pytest.fixture(scope="module")
def client(glue_url: str):
    """What somebody else does in the catalog."""
    keys = {"aws_access_key_id": "other", "aws_secret_access_key": "other"}
    return session.get_session().create_client("glue", "eu-west-1", endpoint_url=glue_url, **keys)


def store(table: Table, rows: dict | pa.Table = ROWS, mode: str = "append") -> None:
    uri, options = clients.delta_rs(locations.table_path(table.name))
    rows = rows if isinstance(rows, pa.Table) else pa.table(rows)
    write_deltalake(
        uri, rows, mode=mode, schema_mode="overwrite" if mode == "overwrite" else None, storage_options=options
    )


def read(client, name: str, query: str) -> list[tuple]:
    """The answer of DuckDB about a table of which one knows the name alone: `query` reads it as `rows`."""
    database_name, _, table = name.partition(".")
    entry = client.get_table(DatabaseName=database_name, Name=table)["Table"]
    assert entry["Parameters"]["spark.sql.sources.provider"] == "delta"
    path = entry["StorageDescriptor"]["SerdeInfo"]["Parameters"]["path"]
    options = clients.STORAGE_OPTIONS if path.startswith("s3://") else None
    rows = DeltaTable(path, storage_options=options).to_pyarrow_table()
    with duckdb.connect() as connection:
        return connection.register("rows", rows).execute(query).fetchall()


def columns(client, name: str) -> dict[str, tuple[str, str | None]]:
    """By column of an entry: its type and its comment."""
    database_name, _, table = name.partition(".")
    entry = client.get_table(DatabaseName=database_name, Name=table)["Table"]
    return {column["Name"]: (column["Type"], column.get("Comment")) for column in entry["StorageDescriptor"]["Columns"]}


def names(client, database_name: str) -> list[str]:
    try:
        return [entry["Name"] for entry in client.get_tables(DatabaseName=database_name)["TableList"]]
    except client.exceptions.EntityNotFoundException:
        return []


def states(found: dict[str, Registration]) -> dict[str, State]:
    return {table: entry.state for table, entry in found.items()}


def test_a_stored_table_of_silver_or_gold_is_read_by_its_name_alone(prefix: str, client):
    store(GOLD)
    store(BRONZE)
    found = registration.register(TABLES)
    assert states(found) == {SILVER.name: State.NOT_STORED, GOLD.name: State.REGISTERED}
    assert found[GOLD.name].name == f"{prefix}gold.sums"
    assert read(client, f"{prefix}gold.sums", "SELECT id, name FROM rows ORDER BY id") == [(1, "a"), (2, "b"), (3, "c")]
    entry = client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"]
    assert (entry["Description"], entry["Owner"], entry["TableType"]) == ("one row per day", "team-x", "EXTERNAL_TABLE")
    assert (entry["PartitionKeys"], columns(client, f"{prefix}gold.sums")) == (
        [],
        {"id": ("bigint", None), "name": ("string", None)},
    )
    assert names(client, f"{prefix}bronze") == []
    store(GOLD, {"id": [4], "name": ["d"]})
    assert read(client, f"{prefix}gold.sums", "SELECT count(*) FROM rows") == [(4,)]


def test_the_layers_whose_tables_are_registered_can_be_set(prefix: str, client, own_settings):
    own_settings(SLUICE_CATALOG_LAYERS="bronze,gold")
    store(BRONZE)
    store(SILVER)
    assert states(registration.register(TABLES)) == {BRONZE.name: State.REGISTERED, GOLD.name: State.NOT_STORED}
    assert (names(client, f"{prefix}bronze"), names(client, f"{prefix}silver")) == (["events"], [])


def test_a_column_that_was_renamed_or_added_is_in_the_catalog_after_the_next_look(prefix: str, client):
    store(GOLD)
    registration.register(TABLES)
    comment = {"comment": "how  much\nit cost"}
    fields = [
        pa.field("number", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("sum", pa.float64(), metadata=comment),
    ]
    store(GOLD, pa.table({"number": [1], "name": ["a"], "sum": [0.5]}, schema=pa.schema(fields)), mode="overwrite")
    assert registration.survey(TABLES)[GOLD.name] == Registration(
        f"{prefix}gold.sums", State.DIFFERS, "columns, comments of columns"
    )
    assert columns(client, f"{prefix}gold.sums") == {"id": ("bigint", None), "name": ("string", None)}
    found = registration.register(TABLES)[GOLD.name]
    assert (found.state, found.done) == (State.REGISTERED, "corrected (columns, comments of columns)")
    new = {"number": ("bigint", None), "name": ("string", None), "sum": ("double", "how much it cost")}
    assert columns(client, f"{prefix}gold.sums") == new
    assert client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"]["VersionId"] == "2"
    assert registration.register(TABLES)[GOLD.name].done == ""


def test_a_log_is_opened_only_if_it_has_moved_and_after_a_while(prefix: str, monkeypatch):
    opened = []
    open_table = stored_table.open_table
    monkeypatch.setattr(stored_table, "open_table", lambda name: opened.append(name) or open_table(name))
    store(GOLD)
    registration.register(TABLES)
    store(GOLD)
    registration.register(TABLES)
    assert opened == [GOLD.name], "it was looked at a moment ago"
    monkeypatch.setattr(registration, "LOOK_SECONDS", -1)
    registration.register(TABLES)
    registration.register(TABLES)
    assert opened == [GOLD.name, GOLD.name], "then it has not moved"


def test_an_entry_that_a_person_drops_or_changes_comes_back_with_the_parameters_of_others(prefix: str, client):
    store(GOLD)
    registration.register(TABLES)
    client.delete_table(DatabaseName=f"{prefix}gold", Name="sums")
    assert registration.register(TABLES)[GOLD.name].done == "created"
    stored = client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"]
    changed = {key: stored[key] for key in ("Name", "TableType", "PartitionKeys", "StorageDescriptor")}
    changed["StorageDescriptor"]["Columns"] = [{"Name": "col", "Type": "array<string>"}]
    client.update_table(
        DatabaseName=f"{prefix}gold",
        TableInput={**changed, "Parameters": {**stored["Parameters"], "table_type": "HIVE", "cost centre": "7"}},
    )
    assert registration.register(TABLES)[GOLD.name].done == (
        "corrected (comment, owner, columns, comments of columns, parameters)"
    )
    entry = client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"]
    assert (entry["Parameters"]["cost centre"], entry["Parameters"]["table_type"]) == ("7", "delta")
    assert list(columns(client, f"{prefix}gold.sums")) == ["id", "name"]


def test_an_entry_of_somebody_else_is_left_alone_and_says_what_to_do(prefix: str, client):
    location = {"StorageDescriptor": {"Location": "s3://elsewhere/sums/"}}
    client.create_database(DatabaseInput={"Name": f"{prefix}gold"})
    client.create_table(DatabaseName=f"{prefix}gold", TableInput={"Name": "sums", **location})
    store(GOLD)
    store(SILVER)
    before = client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"]
    found = registration.register(TABLES)
    assert found[GOLD.name].reason == (
        f"{prefix}gold.sums is in the catalog already, not registered by Sluice, and lies at s3://elsewhere/sums: drop "
        f"it there, or set a prefix in SLUICE_CATALOG"
    )
    assert states(found) == {SILVER.name: State.REGISTERED, GOLD.name: State.REFUSED}, "it costs itself alone"
    assert client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"] == before


def test_a_table_that_another_platform_registered_is_not_taken_over(prefix: str, client):
    store(GOLD)
    registration.register(TABLES)
    first = client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"]
    with database.transaction(database.connect(settings().control_url)) as connection:
        connection.execute(schema.platforms.delete())
    found = registration.register(TABLES)[GOLD.name]
    mark = first["Parameters"]["sluice.platform"]
    assert found.state == State.REFUSED
    assert found.reason.startswith(
        f"{prefix}gold.sums is in the catalog already, registered by the platform {mark}, and"
    )
    assert client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"] == first


def test_a_table_whose_lake_has_moved_is_not_given_another_location(prefix: str, client, own_settings, tmp_path):
    store(GOLD)
    registration.register(TABLES)
    first = client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"]
    own_settings(SLUICE_LAKE=tmp_path / "moved")
    store(GOLD)
    found = registration.register(TABLES)[GOLD.name]
    there = first["StorageDescriptor"]["Location"]
    assert found.reason == (
        f"{prefix}gold.sums is registered at {there}, and the table lies at file://{tmp_path}/moved/gold/sums: drop it "
        f"in the catalog, and it is registered at its place"
    )
    assert client.get_table(DatabaseName=f"{prefix}gold", Name="sums")["Table"] == first
    client.delete_table(DatabaseName=f"{prefix}gold", Name="sums")
    assert registration.register(TABLES)[GOLD.name].done == "created"


def test_a_table_that_is_no_longer_declared_is_listed_and_keeps_its_entry(prefix: str, client, own_settings):
    store(GOLD)
    store(SILVER)
    registration.register(TABLES)
    own_settings(SLUICE_CATALOG_LAYERS="gold")
    found = registration.register(catalog())
    assert states(found) == {SILVER.name: State.NOT_DECLARED, GOLD.name: State.NOT_DECLARED}
    assert (names(client, f"{prefix}silver"), names(client, f"{prefix}gold")) == (["readings"], ["sums"])
    broken = catalog(invalid={GOLD.name: ["a mistake"]}, unusable={SILVER.name: GOLD.name})
    assert registration.survey(broken) == {}, "a broken file is no decision"


def test_odd_names_and_long_texts_fit_the_limits_of_glue(prefix: str, client):
    odd = declared("gold.odd", comment="ä" * 2_000 + "\nend")
    inner = pa.struct([pa.field("größe-x", pa.int16()), pa.field("at", pa.timestamp("us", "UTC"))])
    fields = [
        pa.field("naïve", pa.map_(pa.string(), pa.list_(inner)), metadata={"comment": "é" * 200}),
        pa.field("preis", pa.decimal128(20, 4)),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary()),
        pa.field("flag", pa.bool_()),
        pa.field("tiny", pa.int8()),
    ]
    store(odd, pa.Table.from_pylist([], schema=pa.schema(fields)))
    assert registration.register(catalog(odd))[odd.name].state == State.REGISTERED
    declared_type = "map<string,array<struct<größe-x:smallint,at:timestamp>>>"
    found = columns(client, f"{prefix}gold.odd")
    assert found.pop("naïve") == (declared_type, "é" * 127)
    assert {name: kind for name, (kind, _) in found.items()} == {
        "preis": "decimal(20,4)",
        "day": "date",
        "raw": "binary",
        "flag": "boolean",
        "tiny": "tinyint",
    }
    entry = client.get_table(DatabaseName=f"{prefix}gold", Name="odd")["Table"]
    assert entry["Description"] == "ä" * 1_024
    assert registration.register(catalog(odd))[odd.name].done == "", "what was cut is no difference"


def test_a_log_that_cannot_be_read_costs_its_own_table(prefix: str):
    store(SILVER)
    store(GOLD)
    (locations.table_path(GOLD.name) / "_delta_log" / f"{0:020}.json").write_text("no JSON")
    found = registration.register(TABLES)
    assert states(found) == {SILVER.name: State.REGISTERED, GOLD.name: State.REFUSED}
    assert found[GOLD.name].reason.startswith("its log cannot be read: ")


def test_a_catalog_that_is_away_is_one_sentence_and_no_table_is_forgotten(prefix: str, glue_url: str, own_settings):
    store(GOLD)
    port = free_port()
    own_settings(AWS_ENDPOINT_URL_GLUE=f"http://127.0.0.1:{port}")
    sentence = (
        f"the catalog at http://127.0.0.1:{port} does not answer (EndpointConnectionError): check "
        f"AWS_ENDPOINT_URL_GLUE and AWS_REGION; tables keep their names there"
    )
    with pytest.raises(Unreachable, match=f"^{re.escape(sentence)}$"):
        registration.register(TABLES)
    own_settings(AWS_ENDPOINT_URL_GLUE=glue_url)
    assert registration.register(TABLES)[GOLD.name].done == "created"


def test_a_server_that_is_no_catalog_is_one_sentence(prefix: str, glue_url: str, own_settings):
    own_settings(AWS_ENDPOINT_URL_GLUE=f"{glue_url}/moto-api/data.json")
    with pytest.raises(
        Unreachable, match=r"^the catalog at \S+ answers GetTables as no catalog does: check AWS_ENDPOINT"
    ):
        registration.register(TABLES)


def test_credentials_that_the_catalog_refuses_are_one_sentence_without_them(prefix: str):
    store(GOLD)
    with enable_iam_authentication(), pytest.raises(Unreachable) as refusal:
        registration.register(TABLES)
    text = str(refusal.value)
    assert re.fullmatch(
        r"the catalog at \S+ refuses the credentials \(\w+\): renew them, permit them glue:GetTables, or correct \w+",
        text,
    )
    assert "hush" not in text


def test_the_command_says_what_differs_and_registers_where_it_is_asked_to(prefix: str, client, monkeypatch, capsys):
    def run(**options: bool) -> str:
        exports.show_catalog(**options)
        return capsys.readouterr().out

    monkeypatch.setattr(catalogs, "load", lambda: TABLES)
    store(GOLD)
    readings = f"silver.readings as {prefix}silver.readings: waits for its first batch\n"
    assert run() == f"{readings}gold.sums as {prefix}gold.sums: not registered yet\n"
    assert names(client, f"{prefix}gold") == []
    assert run(now=True) == f"{readings}gold.sums as {prefix}gold.sums: registered: created\n"
    name = {"name": f"{prefix}gold.sums", "state": "registered", "reason": "", "done": ""}
    assert json.loads(run(as_json=True))["gold.sums"] == name


def test_without_a_catalog_the_command_says_how_to_name_one(home, monkeypatch, capsys):
    monkeypatch.delenv("SLUICE_CATALOG", raising=False)
    exports.show_catalog()
    assert capsys.readouterr().out == "no table is registered anywhere: see SLUICE_CATALOG\n"


@pytest.mark.parametrize(
    ("of_delta", "of_hive"),
    [
        ("timestamp_ntz", "timestamp"),
        ("variant", "string"),
        ("decimal(38,18)", "decimal(38,18)"),
        ({"type": "array", "elementType": "long", "containsNull": True}, "array<bigint>"),
    ],
)
def test_each_type_of_delta_has_one_of_hive(of_delta: object, of_hive: str):
    assert glue.hive_type(of_delta) == of_hive


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("AWS_REGION", "SLUICE_CATALOG is glue, and no region is set: set AWS_REGION"),
        ("SLUICE_CATALOG", "SLUICE_CATALOG is not set, so no table is registered anywhere: set it to glue"),
    ],
)
def test_what_is_not_set_is_named(prefix: str, monkeypatch, variable: str, sentence: str):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv(variable)
    settings.cache_clear()
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        registration.register(TABLES)
