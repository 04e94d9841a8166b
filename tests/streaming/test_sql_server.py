"""Programs that are not ours query tables by name while they are written, and cannot write them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.connect.session import SparkSession

from include.lake import locations
from include.local import artifacts, java
from include.settings import settings
from tests.conftest import ROOT, free_port
from tests.support.waiting import wait_until

BRONZE, GOLD, REJECTED = "bronze.page_views", "gold.views_by_hour", "quarantine.silver_page_views"
TABLES = (BRONZE, GOLD, REJECTED, "ledger.query_progress")
WRITES = (
    "INSERT INTO {0} VALUES (1)",
    "INSERT OVERWRITE {0} VALUES (1)",
    "DELETE FROM {0}",
    "UPDATE {0} SET n = 1",
    "MERGE INTO {0} USING gold.views_by_hour s ON {0}.n = s.n WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE {0}",
    "OPTIMIZE {0}",
    "VACUUM {0}",
    "ALTER TABLE {0} ADD COLUMNS (k INT)",
)


TOKEN = "a token of no value"


class Lake:
    """Tables of a home of their own, written without Spark."""

    def __init__(self, home: Path) -> None:
        self._settings = replace(settings(), home=home, lake=str(home / "lake"))

    def append(self, table: str, **columns: list) -> None:
        path = locations.table_path(table, self._settings)
        write_deltalake(path, pa.table(columns), mode="append", schema_mode="merge")


class Server:
    def __init__(self, home: Path) -> None:
        self.sql_port, self.connect_port = free_port(), free_port()
        ports = {"SLUICE_SQL_PORT": str(self.sql_port), "SLUICE_CONNECT_PORT": str(self.connect_port)}
        environment = {**os.environ, **ports, "SLUICE_HOME": str(home), "PYTHONPATH": str(ROOT)}
        environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = TOKEN
        environment.pop("PYSPARK_SUBMIT_ARGS")
        self.log = home / "server.log"
        with self.log.open("w") as log:
            command = [str(Path(sys.executable).parent / "spark-submit"), str(ROOT / "jobs" / "sql_server.py")]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=home)

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "sc://" in self.log.read_text()

    def beeline(self, statement: str) -> subprocess.CompletedProcess:
        """Runs it in Hive's own client, by JDBC."""
        url = f"jdbc:hive2://127.0.0.1:{self.sql_port}"
        options = ["-u", url, "--silent=true", "--outputformat=csv2", "--showHeader=false", "-e", statement]
        command = [
            java.home() / "bin" / "java",
            "-cp",
            f"{artifacts.pyspark_jars()}/*",
            "org.apache.hive.beeline.BeeLine",
        ]
        return subprocess.run([*map(str, command), *options], capture_output=True, text=True, timeout=120)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for table in TABLES[:3]:
        lake.append(table, n=[1, 2])
    return lake


@pytest.fixture
def server(lake: Lake, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture
def session(server: Server) -> Iterator[SparkSession]:
    """A session of Spark Connect. It ends before its server does: at its exit, Python would wait for the server."""
    wait_until(server.is_up, 120)
    session = SparkSession.builder.remote(f"sc://localhost:{server.connect_port}/;token={TOKEN}").create()
    yield session
    session.stop()


def test_other_programs_query_every_table_by_name_while_it_is_written_and_cannot_write_it(
    lake: Lake, server: Server, session: SparkSession
):
    def count(table: str) -> int:
        return session.table(table).count()

    def is_named(table: str) -> bool:
        return session.catalog.tableExists(table)

    assert [count(table) for table in TABLES[:3]] == [2, 2, 2]
    assert not is_named(TABLES[3])
    # What is committed is read at once; a new table gets its name a few seconds later.
    lake.append(GOLD, n=[3], more=["x"])
    lake.append(TABLES[3], n=[1])
    assert session.sql(f"SELECT * FROM {GOLD} ORDER BY n").collect()[-1].asDict() == {"n": 3, "more": "x"}
    assert server.beeline(f"SELECT n, more FROM {GOLD} WHERE n > 2").stdout.split()[-1] == "3,x"
    wait_until(lambda: is_named(TABLES[3]), 60)
    assert count(TABLES[3]) == 1

    # No other machine reaches it. A JVM has sockets of IPv6 for addresses of IPv4, too.
    leader = psutil.Process(server.process.pid)
    sockets = [one for process in (leader, *leader.children(recursive=True)) for one in process.net_connections()]
    listening = {one.laddr for one in sockets if one.status == "LISTEN"}
    ports = {port for _, port in listening}
    assert {server.sql_port, server.connect_port} <= ports
    assert {ip.removeprefix("::ffff:") for ip, _ in listening} <= {"127.0.0.1", "::1"}, listening
    for parameters in ("", "/;token=another"):
        with pytest.raises(Exception, match="UNAUTHENTICATED|Invalid token|No authentication"):
            SparkSession.builder.remote(f"sc://localhost:{server.connect_port}{parameters}").create().range(1).count()

    for statement in WRITES:
        with pytest.raises(Exception, match="VIEW|view|only supports Delta"):
            session.sql(statement.format(BRONZE)).collect()
    refused = server.beeline(f"DELETE FROM {BRONZE}")
    assert refused.returncode and "only supports Delta sources" in refused.stderr
    assert count(BRONZE) == 2
    # This takes the name only, and the server gives it again.
    session.sql(f"DROP TABLE {BRONZE}")
    wait_until(lambda: is_named(BRONZE), 60)
