"""A personal value is in the tables alone, whatever happens to its row."""

import json
import uuid

import pytest

from include import catalog
from include.catalog import Catalog
from include.cli import rows
from include.control.store import database
from include.errors import FlowFailed
from include.rules import Expect
from include.settings import settings
from include.spec import Delta, Flow
from tests.support.flows import rows_of
from tests.support.secrets_search import files_with, rows_with

SCHEMA = "id BIGINT, email STRING"
# Not written by Sluice for people to read: tables, and what Spark needs for a moment.
NOT_SHOWN = ("lake", "tmp", "broker", "checkpoints")


def test_a_personal_value_is_in_no_error_sample_log_or_row_of_the_control_database(
    name, append, run_once, monkeypatch, capsys
):
    ada = f"ada{uuid.uuid4().hex}"
    table = Flow(
        name=f"silver.{name}",
        comment="x",
        source=Delta(f"bronze.{name}"),
        schema=f"{SCHEMA}, number INT",
        # Spark's error says which value cannot be cast.
        transform="SELECT id, email, CAST(IF(id = 2, email, '0') AS INT) AS number FROM source",
        expect=(Expect("first", "id < 3"),),
        personal=("email",),
    )
    append(f"bronze.{name}", [{"id": number, "email": f"{ada}{number}"} for number in (1, 2, 3)], SCHEMA)
    run_once(table)
    assert [row["email"] for row in rows_of(table.name)] == [f"{ada}1"]
    assert len(rows_of(table.quarantine)) == 2
    monkeypatch.setattr(catalog, "load", lambda: Catalog({table.name: table}))
    rows.show_quarantine(table.name, as_json=True)
    shown = capsys.readouterr().out
    assert len(json.loads(shown)["rows"]) == 2

    append(f"bronze.{name}", [{"id": 2, "email": f"{ada}4"}], SCHEMA)
    failing = Flow(
        name=f"silver.{name}_all",
        comment="x",
        source=Delta(f"bronze.{name}"),
        schema=table.schema,
        transform="SELECT id, email, CAST(email AS INT) AS number FROM source",
        personal=("email",),
    )
    with pytest.raises(FlowFailed) as error:
        run_once(failing)
    engine = database.connect(settings().control_url)
    logged = capsys.readouterr()
    assert ada not in f"{shown}{error.value}{logged.out}{logged.err}"
    places = [place for place in settings().home.iterdir() if place.name not in NOT_SHOWN]
    assert [file for place in places if place.is_dir() for file in files_with([ada], place)] == []
    assert rows_with([ada], engine) == set()
