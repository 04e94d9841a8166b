"""Serves every stored table by its name, read-only, to SQL clients (JDBC) and to Spark sessions (Spark Connect)."""

import time
from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from include import catalog, logs
from include.catalog import Catalog
from include.control import ports
from include.engine import sql_text
from include.engine.session import jvm_of, open_session
from include.lake import locations
from include.lake.paths import names
from include.monitoring.query_progress import TABLE as QUERY_PROGRESS
from include.settings import Settings, settings

HOST = "127.0.0.1"
# A table that is stored for the first time gets its name after this time. Rows and columns are always current.
REFRESH_SECONDS = 10


def serve() -> None:
    """Serves at the ports of the settings until the process is ended. Raises SetupError if one is taken."""
    config = settings()
    # Both servers of Spark would end with pages of text.
    for port, setting in ((config.sql_port, "SLUICE_SQL_PORT"), (config.connect_port, "SLUICE_CONNECT_PORT")):
        if port:
            ports.require_free(HOST, port, "the SQL server", setting)
    spark = open_session("sluice sql-server", Catalog({}), _conf(config))
    published = publish(spark, {})
    if config.sql_port:
        _start_thrift_server(spark, config)
        logs.info(f"SQL clients connect to jdbc:hive2://{HOST}:{config.sql_port}")
    if config.connect_port:
        logs.info(f"Spark sessions connect to sc://{HOST}:{config.connect_port}")
    while True:
        time.sleep(REFRESH_SECONDS)
        published = publish(spark, published)


def publish(spark: SparkSession, published: Mapping[str, str]) -> dict[str, str]:
    """Gives each stored table its name, and takes it from tables that are gone.

    published: the tables with names, with their comments, as returned by the last call. A name is a view: Spark refuses
    every command that would write to it, and this process is no writer that leases and windows know.
    """
    if catalog.file_versions() != catalog.load().files:
        catalog.reload()
    declared = _tables(catalog.load())
    # One listing for each layer: in an object store each costs a request.
    layers = {name.split(".")[0] for name in declared}
    found = {f"{layer}.{name}" for layer in layers for name in names(locations.lake() / layer)}
    stored = {name: comment for name, comment in declared.items() if name in found}
    for name in published.keys() - stored.keys():
        spark.sql(f"DROP VIEW IF EXISTS {name}")
    # A client may drop a view, but no table.
    known = {name for name in stored if published.get(name) == stored[name] and spark.catalog.tableExists(name)}
    return {name: stored[name] for name in stored if name in known or _publish(spark, name, stored[name])}


def _publish(spark: SparkSession, name: str, comment: str) -> bool:
    """Returns whether the table could be read. One that is just being created cannot, and gets its name later."""
    try:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {name.split('.')[0]}")
        spark.sql(
            f"CREATE OR REPLACE VIEW {name} COMMENT {sql_text.literal(comment)} WITH SCHEMA EVOLUTION "
            f"AS SELECT * FROM {sql_text.delta(locations.table_path(name))}"
        )
    except PySparkException:
        return False
    return True


def _tables(tables: Catalog) -> dict[str, str]:
    """Returns the comment of each table that may be stored, by name."""
    comments = {QUERY_PROGRESS: "Query progress of all flows."}
    for table in tables.tables.values():
        comments[table.name] = table.comment
        comments[table.quarantine] = f"Rows that {table.name} rejected."
    return comments


def _conf(config: Settings) -> dict[str, str]:
    conf: dict[str, str] = {}
    if config.sql_port:
        conf |= {
            "spark.hadoop.hive.server2.thrift.port": str(config.sql_port),
            "spark.hadoop.hive.server2.thrift.bind.host": HOST,
            "spark.hadoop.hive.server2.logging.operation.enabled": "false",
        }
    if config.connect_port:
        conf |= {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(config.connect_port),
        }
    return conf


def _start_thrift_server(spark: SparkSession, config: Settings) -> None:
    jvm = jvm_of(spark)
    # Hive opens an empty Derby database in memory, whose log would land in the working directory.
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(config.temporary / "derby.log"))
    jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2.startWithContext(spark._jsparkSession.sqlContext())
