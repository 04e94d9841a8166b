"""Clusters with TLS, passwords and client certificates are read like any other."""

import secrets
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import javaproperties
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from prometheus_client import generate_latest
from sqlalchemy import select

from include.catalog import Catalog
from include.checkpoints.checkpoint_files import owner
from include.cli import status
from include.cli.rows import origin_lines
from include.control.store import database
from include.control.store.schema import runs
from include.delta.delta_log import Commit, DeltaLog
from include.engine.fast_path.table_layout import NotSupported
from include.engine.fast_path.topic_reader import TopicReader
from include.errors import FlowBroken
from include.kafka import broker, topics
from include.kafka.broker import Topics
from include.kafka.cluster import AccessRefused, Cluster
from include.lake import locations
from include.ledger import explain, verify
from include.local import java
from include.monitoring import consumer_groups, graph, lag, lineage, lineage_loader
from include.monitoring.consumer_groups import Mirrored
from include.monitoring.prometheus import registry
from include.monitoring.status import statuses
from include.settings import settings
from include.spec import Flow, Kafka, Table
from tests.conftest import S3_PORT, free_port
from tests.support.flows import only_in_full_runs, rows_of, wait_for_rows
from tests.support.jobs.process import Job
from tests.support.jobs.watched_driver import tables_of
from tests.support.kafka.secure_broker import MECHANISMS, RANDOM_CHARACTERS, USER, Authority, SecureBroker
from tests.support.postgresql import Server
from tests.support.s3 import object_lake
from tests.support.secrets_search import download, files_with, holds, processes_with, rows_with, ui_pages
from tests.support.topic import Topic
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def secure_broker(tmp_path_factory) -> Iterator[SecureBroker]:
    directory = tmp_path_factory.mktemp("secure")
    authority = Authority(directory / "authority")
    broker = SecureBroker(
        directory / "broker", settings().jars, java.home(), free_port(), free_port(), authority=authority
    )
    broker.prepare()
    with (directory / "broker.log").open("ab") as log:
        process = subprocess.Popen(broker.command(), stdout=log, stderr=subprocess.STDOUT)
    broker.wait(60)
    broker.add_scram_user()
    yield broker
    process.kill()
    process.wait()


@pytest.fixture
def declare_cluster(tmp_path: Path, monkeypatch) -> Iterator[Callable[[str, str], None]]:
    """`declare_cluster("eu", properties)` adds a cluster to the settings of one test."""

    def declare(name: str, properties: str) -> None:
        file = tmp_path / f"{name}.properties"
        file.write_text(properties)
        monkeypatch.setenv(f"SLUICE_KAFKA_{name.upper()}_CONFIG", str(file))
        settings.cache_clear()

    yield declare
    monkeypatch.undo()
    settings.cache_clear()


LOGIN = "org.apache.kafka.common.security"


def login(password: str) -> str:
    return f'{LOGIN}.plain.PlainLoginModule required username="{USER}" password="{password}";'


def refuse(*_: object) -> None:
    raise NotSupported("Spark shall read it")


@pytest.fixture
def properties_of(secure_broker: SecureBroker) -> dict[str, str]:
    """The properties files of clients, by what they prove themselves with."""
    pem = {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(secure_broker.authority.issue("client-pem"))}
    return {name: secure_broker.properties(name) for name in MECHANISMS} | {
        "PEM": secure_broker.properties("MUTUAL", **pem, ssl_keystore_password=None)
    }


@pytest.mark.parametrize(
    "access", [*(pytest.param(name, marks=only_in_full_runs) for name in MECHANISMS if name != "SCRAM"), "SCRAM", "PEM"]
)
def test_a_flow_its_lag_its_ledger_and_its_consumer_group_work_with(
    access, secure_broker, properties_of, declare_cluster, name, run_once, monkeypatch
):
    topic = secure_broker.topic(2).send(*range(4))
    declare_cluster("eu", properties_of[access])
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(topic.name, cluster="eu"))
    run_once(bronze)
    topic.send(4, 5)
    with monkeypatch.context() as patch:
        patch.setattr(TopicReader, "read", refuse)
        run_once(bronze)
    assert sorted(int(row["value"]) for row in rows_of(bronze.name)) == list(range(6))
    verification = verify.verify(bronze)
    assert (verification.batches, verification.notes) == (2, [])
    topic.send(6)
    flow_lag = lag.measure([bronze], timeout_seconds=10)[bronze.flow]
    assert flow_lag.words == "1 records of eu"
    assert flow_lag.hours_until_loss is not None
    mirrored = Mirrored(f"sluice.{bronze.flow}")
    wait_until(lambda: consumer_groups.mirror(Catalog({bronze.name: bronze})) == {bronze.flow: mirrored}, 60)
    group = ConsumerGroupTopicPartitions(mirrored.group)
    offsets = topic.admin.list_consumer_group_offsets([group])[group.group_id].result(30).topic_partitions
    assert {offset.partition: offset.offset for offset in offsets} == {0: 3, 1: 3}


def newest_commit(table: Table) -> Commit:
    return next(iter(DeltaLog(locations.table_path(table.name)).commits()))


def refusal_of(run: Callable[..., None], table: Table) -> FlowBroken:
    """The error with which the flow of the table does not start."""
    with pytest.raises(FlowBroken) as refusal:
        run(table)
    return refusal.value


def test_topics_of_the_same_name_in_two_clusters_do_not_mix(
    broker, secure_broker, properties_of, declare_cluster, name, run_once
):
    declare_cluster("eu", properties_of["PLAIN"])
    here, in_eu = Topic(broker).create(), Topic(secure_broker.address)
    in_eu.name = here.name
    secure_broker.grant(here.name)
    here.send("here 0", "here 1")
    in_eu.create().send("eu 0", "eu 1", "eu 2")
    default = Flow(name=f"bronze.{name}", comment="", source=Kafka(here.name))
    eu = Flow(name=f"bronze.{name}_eu", comment="", source=Kafka(here.name, cluster="eu"))
    tables = Catalog({default.name: default, eu.name: eu})
    run_once(default, eu)
    assert [row["value"] for row in rows_of(default.name)] == [b"here 0", b"here 1"]
    assert [row["value"] for row in rows_of(eu.name)] == [b"eu 0", b"eu 1", b"eu 2"]
    assert {"cluster": "eu"}.items() <= owner(locations.checkpoints(eu.flow) / "1")["source"].items()
    assert "cluster" not in owner(locations.checkpoints(default.flow) / "1")["source"], "as older releases write it"

    in_default, in_other = explain.of_record(tables, here.name, 0, 1)
    assert ("of cluster 'eu'" in in_default.sentence, "of cluster 'eu'" in in_other.sentence) == (False, True)
    for line in origin_lines(explain.of_version(tables, eu, in_other.versions[0])):
        assert line.endswith(f"{here.name}/0 0 to 2 of cluster 'eu'")
    addresses = [f"kafka://{broker}", f"kafka://127.0.0.1:{secure_broker.ports['PLAIN']}"]
    inputs = [lineage.event_of(table.flow, table, newest_commit(table)).inputs[0] for table in (default, eu)]
    assert [(read.namespace, read.name) for read in inputs] == [(address, here.name) for address in addresses]
    words = {status_.flow: status_.lag.words for status_ in statuses(tables, timeout_seconds=10)}
    assert words == {default.flow: "0 records", eu.flow: "0 records of eu"}
    assert {f"kafka {here.name}", f"kafka {here.name} of eu"} <= {node.name for node in graph.build_graph(tables).nodes}
    # The same cluster under another name is the same source; another cluster is not, whatever its topics are called.
    declare_cluster("west", properties_of["SCRAM"])
    in_eu.send("eu 3")
    run_once(replace(eu, source=Kafka(here.name, cluster="west")))
    assert len(rows_of(eu.name)) == 4
    error = refusal_of(run_once, replace(eu, source=default.source))
    assert (error.error, "'cluster': 'eu'" in str(error)) == ("CHECKPOINT_OF_ANOTHER_DEFINITION", True)
    error = refusal_of(run_once, replace(eu, source=Kafka(here.name, cluster="ue")))
    assert str(error) == (
        "Kafka cluster 'ue' is unknown (known: eu, west): set SLUICE_KAFKA_UE_CONFIG to its properties file, add the "
        "Airflow connection kafka_ue, or correct cluster= in the table file"
    )


def failures() -> dict[str, tuple[str, str]]:
    """The error class and the sentence of each failed flow, in the control database."""
    engine = database.connect(settings().control_url)
    with database.reading(engine) as connection:
        failed = connection.execute(select(runs).where(runs.c.failure.is_not(None))).all()
    return {row.flow: (row.error, row.failure) for row in failed}


def test_a_cluster_that_lets_nobody_in_says_why(secure_broker, tmp_path):
    foreign = Authority(tmp_path / "foreign")
    without_certificate = {"ssl_keystore_location": None, "ssl_keystore_password": None, "ssl_keystore_type": None}
    pem = {**without_certificate, "ssl_keystore_type": "PEM"}
    mistakes = {
        (
            "PLAIN",
            "does not let it in (SASL authentication error: Authentication failed: Invalid username or password)",
        ): {"sasl_jaas_config": login("no")},
        ("PLAIN", "certificate verify failed: broker certificate could not be verified"): {
            "ssl_truststore_location": str(foreign.file)
        },
        ("PLAIN", "Unsupported SASL mechanism"): {"bootstrap_servers": f"127.0.0.1:{secure_broker.ports['SCRAM']}"},
        ("MUTUAL", "tls alert bad certificate"): without_certificate,
        ("MUTUAL", "tls alert certificate unknown"): {**pem, "ssl_keystore_location": str(foreign.issue("client"))},
        ("MUTUAL", "alert certificate unknown"): {
            **pem,
            "ssl_keystore_location": str(secure_broker.authority.issue("expired", days=-1)),
        },
    }

    def refusal(number: int, listener: str, changes: dict) -> str:
        file = tmp_path / f"{number}.properties"
        file.write_text(secure_broker.properties(listener, **changes))
        properties = javaproperties.loads(file.read_text())
        with pytest.raises(AccessRefused) as error:
            Topics(Cluster("eu", properties["bootstrap.servers"], file, properties), timeout_seconds=3).cluster_id()
        assert str(error.value).startswith(f"SLUICE_KAFKA_EU_CONFIG is {file}, and the broker at 127.0.0.1:")
        return str(error.value)

    with ThreadPoolExecutor(len(mistakes)) as pool:
        cases = enumerate(mistakes.items())
        futures = {reason: pool.submit(refusal, number, name, changes) for number, ((name, reason), changes) in cases}
    for reason, future in futures.items():
        assert reason in future.result()


@only_in_full_runs
def test_a_new_password_counts_from_the_next_start_on_and_the_old_one_is_refused(
    secure_broker, properties_of, declare_cluster, name, run_once, monkeypatch
):
    monkeypatch.setattr(broker, "TIMEOUT_SECONDS", 5)
    topic = secure_broker.topic().send(0)
    declare_cluster("eu", properties_of["SCRAM"])
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(topic.name, cluster="eu"))
    run_once(bronze)
    new_password = secrets.token_hex(8)
    secure_broker.add_scram_user(new_password)
    try:
        topic.send(1)
        error = refusal_of(run_once, bronze)
        assert (error.error, "due to invalid credentials" in str(error)) == ("KAFKA_ACCESS", True)
        jaas = f'{LOGIN}.scram.ScramLoginModule required username="{USER}" password="{new_password}";'
        declare_cluster("eu", secure_broker.properties("SCRAM", sasl_jaas_config=jaas))
        run_once(bronze)
        with monkeypatch.context() as patch:
            patch.setattr(TopicReader, "read", refuse)
            topic.send(2)
            run_once(bronze)
    finally:
        secure_broker.add_scram_user()
    assert sorted(row["value"] for row in rows_of(bronze.name)) == [b"0", b"1", b"2"]


@only_in_full_runs
def test_properties_that_only_java_refuses_are_the_same_error(secure_broker, declare_cluster, name, run_once):
    pem = {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(secure_broker.authority.issue("client-java"))}
    declare_cluster("eu", secure_broker.properties("MUTUAL", **pem, ssl_keystore_password="of no use"))
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(secure_broker.topic().name, cluster="eu"))
    error = refusal_of(run_once, bronze)
    assert error.error == "KAFKA_ACCESS"
    assert "SSL key store password cannot be specified with PEM format" in str(error)
    assert str(error).endswith("correct the properties file of its Kafka cluster")


def test_a_topic_that_the_user_may_not_read_is_named(secure_broker, properties_of, declare_cluster):
    topic = Topic(secure_broker.address).create()
    declare_cluster("eu", properties_of["MUTUAL"])
    with pytest.raises(AccessRefused, match=f"whose user has no right to '{topic.name}' .*: grant Describe"):
        topics.source_identity(Kafka(topic.name, cluster="eu"))


@pytest.fixture
def store_and_database(monkeypatch) -> Iterator[tuple[Server, list[str]]]:
    """The settings of a lake on S3 and a control database on PostgreSQL. Yields its server and their secrets."""
    key, token, password = (secrets.token_hex(RANDOM_CHARACTERS // 2) for _ in range(3))
    server = Server(free_port())
    server.start()
    url = server.add_user("guarded", password).replace("guarded@", f"guarded:{password}@")
    with object_lake.running(S3_PORT, takes_any_key=True):
        variables = {"AWS_SECRET_ACCESS_KEY": key, "AWS_SESSION_TOKEN": token, "AWS_ALLOW_HTTP": "true"}
        for variable, value in {**variables, "SLUICE_LAKE": object_lake.new(), "SLUICE_CONTROL_URL": url}.items():
            monkeypatch.setenv(variable, value)
        yield server, [key, token, password]
    database.connect(url).dispose()
    server.remove()


def test_no_secret_is_left_anywhere(
    secure_broker, properties_of, declare_cluster, store_and_database, tmp_path, monkeypatch, name, capsys
):
    topic = secure_broker.topic().send(*range(20))
    home, ui_port = tmp_path / "home", free_port()
    home.mkdir()
    monkeypatch.setenv("SLUICE_HOME", str(home))
    server, other_secrets = store_and_database
    wrong = secrets.token_hex(RANDOM_CHARACTERS // 2)
    for access in MECHANISMS:
        declare_cluster(access.lower(), properties_of[access])
    declare_cluster("wrong", secure_broker.properties("PLAIN", sasl_jaas_config=login(wrong)))
    passwords = (*secure_broker.passwords.values(), wrong, *other_secrets)
    planted = [password[-RANDOM_CHARACTERS:] for password in passwords]
    clusters = [*map(str.lower, MECHANISMS), "wrong"]
    tables = tables_of(name, topic.name, clusters)
    *good_tables, wrong_table = tables.values()
    job = Job(home, "tests.support.jobs.watched_driver", name, topic.name, str(ui_port), *clusters)
    try:
        for table in good_tables:
            wait_for_rows(table, 20)
        wait_until(failures, 100)
        pages, command_lines = dict(ui_pages(ui_port)), processes_with(planted)
        assert processes_with([topic.name]), "the search finds what is on a command line"
        with server.down():
            assert job.wait() == 6, job.log.read_text()
    finally:
        job.end()
    download(locations.lake(), tmp_path / "objects")
    print(status.text(statuses(Catalog(tables))), generate_latest(registry(Catalog(tables))))
    print(consumer_groups.mirror(Catalog(tables)), lineage_loader.emit_events(Catalog(tables)))
    assert not holds(capsys.readouterr().out.encode(), planted)
    assert command_lines == []
    assert [address for address, page in pages.items() if holds(page, planted)] == []
    assert any(holds(page, [topic.name]) for page in pages.values()), "the search finds what is on a page"
    assert rows_with(planted, database.connect(settings().control_url)) == set()
    assert rows_with([name], database.connect(settings().control_url)), "the search finds what is in a table"
    assert files_with([topic.name], tmp_path / "objects"), "the search finds what is in the store"
    # The search finds the files that were to hold the secrets, and no other one.
    assert files_with(planted, tmp_path) == {tmp_path / f"{cluster}.properties" for cluster in clusters}
    assert failures() == {
        wrong_table.flow: (
            "KAFKA_ACCESS",
            f"SLUICE_KAFKA_WRONG_CONFIG is {tmp_path}/wrong.properties, and the broker at "
            f"127.0.0.1:{secure_broker.ports['PLAIN']} does not let it in (SASL authentication error: Authentication "
            f"failed: Invalid username or password): correct its password or certificate",
        )
    }
