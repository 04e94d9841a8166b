"""What a file costs: python -m benchmarks.sources [--few 100] [--many 10000], in a home of its own, without a broker.

Measures CPU seconds per file (Python and its JVM) of a flow with `few` small CSV files and of a flow with `many`. Both
run in the same session, after a warm-up with another flow.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.support.session import cpu_seconds, session
from include.catalog import Catalog
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.errors import report
from include.settings import settings
from include.spec import Files, Flow, Table

ROWS = "2019-08-04,500.00,Pay\n2019-08-04,-21.60,Uber Eats\n"


def table(name: str) -> Table:
    return Flow(
        name=f"bronze.{name}",
        comment="",
        source=Files(name, format="csv"),
        schema="date STRING, amount STRING, description STRING",
    )


def seconds_per_file(spark: SparkSession, name: str, count: int) -> float:
    folder = Path(settings().folder(name))
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.csv").write_text(f"date,amount,description\n{ROWS}")
    jvm = driver.jvm_pid()
    engine = database.connect(settings().control_url)
    lease_renewer = LeaseRenewer(
        engine, Holder.here(name, jvm), settings().lease_seconds, lambda reason: driver.halt(jvm, reason)
    )
    lease_renewer.take([f"bronze.{name}"])
    lease_renewer.start()
    try:
        begin = cpu_seconds()
        Host(spark, engine, lease_renewer, name).run_once([table(name)])
        return (cpu_seconds() - begin) / count
    finally:
        lease_renewer.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sources", description=__doc__.splitlines()[0])
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=10_000)
    arguments = parser.parse_args()
    with session(Catalog({})) as spark:
        seconds_per_file(spark, "warm_up", arguments.few)
        few, many = seconds_per_file(spark, "few", arguments.few), seconds_per_file(spark, "many", arguments.many)
    print(f"CPU a file: {few * 1000:.1f} ms of {arguments.few:,} files, {many * 1000:.1f} ms of {arguments.many:,}")
    print(f"ratio {many / few:.2f} (aim: not above 1)")


if __name__ == "__main__":
    report(main)
