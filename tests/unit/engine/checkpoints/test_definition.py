"""Fingerprints of declarations, by which a start tells whether a definition has changed."""

from include.engine.checkpoints import definition
from include.project import sources
from include.spec import Append, Delta, Expect, Kafka, Replace, Step, Table, Upsert, View

EVENTS = Table(name="bronze.events", comment="as it came", source={"eu": Kafka("e"), "": Delta("bronze.raw")})
STEP = Table(
    name="silver.step",
    comment="a step",
    source=Delta("bronze.events", max_files=7),
    schema="id INT",
    transform="SELECT 1 AS id FROM source",
    temporary=True,
)
LATEST = Table(
    name="gold.latest",
    comment="by key",
    source=Delta("silver.step"),
    schema="id INT, at BIGINT",
    write=Upsert(("id",), sequence_by="at"),
    owner="data",
)
VIEW = Table(name="gold.view", comment="", source=Delta("bronze.events"), schema="id INT", write=Replace())


def test_fingerprints_of_older_releases_stay_valid():
    stored, _ = sources.inline_steps({table.name: table for table in (EVENTS, STEP, LATEST)})
    flows = {flow.flow: flow for table in stored.values() for flow in table.flows}
    assert {name: definition.fingerprint(flow)[:12] for name, flow in flows.items()} == {
        "bronze.events.eu": "90e1fc02e444",
        "bronze.events": "f0eda265eeae",
        "gold.latest": "dbcf1a1aafa1",
    }
    assert {name: definition.rows_fingerprint(flow)[:12] for name, flow in flows.items()} == {
        "bronze.events.eu": "d463b5494f6b",
        "bronze.events": "84101f992a2b",
        "gold.latest": "23676e9fcf5f",
    }


def test_a_view_and_a_step_are_the_same_by_their_own_classes_as_by_an_option():
    step = Step(name=STEP.name, comment=STEP.comment, source=STEP.source, schema=STEP.schema, transform=STEP.transform)
    view = View(name=VIEW.name, comment=VIEW.comment, source=VIEW.source, schema=VIEW.schema)
    assert (definition.declared(step), definition.declared(view)) == (
        definition.declared(STEP),
        definition.declared(VIEW),
    )
    assert view.is_view and not view.flows
    assert sources.inline_steps({table.name: table for table in (EVENTS, step)})[1] == {step.name: step}


def test_a_change_of_the_comment_changes_the_fingerprint_and_not_that_of_the_rows():
    [flow] = Table(name="silver.a", comment="a", source=Delta("bronze.events"), schema="id INT").flows
    [commented] = Table(name="silver.a", comment="b", source=Delta("bronze.events"), schema="id INT").flows
    assert definition.fingerprint(flow) != definition.fingerprint(commented)
    assert definition.rows_fingerprint(flow) == definition.rows_fingerprint(commented)
    [checked] = Table(
        name="silver.a",
        comment="a",
        source=Delta("bronze.events"),
        schema="id INT",
        write=Append(),
        expect=(Expect("known", "id IS NOT NULL"),),
    ).flows
    assert definition.rows_fingerprint(flow) != definition.rows_fingerprint(checked)
