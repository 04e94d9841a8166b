"""A driver that runs flows of a benchmark in a thread, as `jobs/stream.py` does in a process."""

import threading
import time
from contextlib import suppress

from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from include import catalog
from include.catalog import Catalog
from include.control.flows import orders
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.delta import stored_table
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.settings import settings
from include.spec import Table


def running_host(spark: SparkSession, tables: list[Table]) -> Host:
    """Start the driver of these flows, which has the name that they declare."""
    name = tables[0].driver
    engine = database.connect(settings().control_url)
    jvm = driver.jvm_pid()
    lease_renewer = LeaseRenewer(
        engine, Holder.here(name, jvm), settings().lease_seconds, lambda reason: driver.halt(jvm, reason)
    )
    lease_renewer.take([lease.driver_lease(name)])
    lease_renewer.start()
    orders.begin(engine, [table.name for table in tables], by_hand=False)
    # No table file declares these tables.
    catalog.reload = lambda: Catalog({table.name: table for table in tables})
    host = Host(spark, engine, lease_renewer, name)
    threading.Thread(target=lambda: host.run(tables, is_supervised=True), daemon=True).start()
    return host


def stop(host: Host) -> None:
    """Stop the queries of all flows."""
    for flow in list(host._flows.values()):
        flow.query.stop()


def wait_for_batch(table: Table, previous: int) -> int:
    """Wait for a batch after this one, and return its number."""
    while True:
        # The table may not exist yet.
        with suppress(TableNotFoundError):
            batch = stored_table.open_table(table.name).transaction_version(f"{table.flow}/1")
            if batch is not None and batch > previous:
                return int(batch)
        time.sleep(0.02)
