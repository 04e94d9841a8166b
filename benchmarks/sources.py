"""What a file costs: python -m benchmarks.sources [--few 100] [--many 10000], in a home of its own, without a broker.

CPU seconds (Python and its JVM) a file, of one flow that reads `few` small CSV files and of one that reads `many`, in
one session, after a first flow has warmed it up.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.session import cpu_seconds, session
from include.catalog import Catalog
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder
from include.control.store import database
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.errors import report
from include.settings import settings
from include.spec import Files, Table

ROWS = "2019-08-04,500.00,Pay\n2019-08-04,-21.60,Uber Eats\n"


def table(name: str) -> Table:
    return Table(
        name=f"bronze.{name}",
        comment="",
        source=Files(name, format="csv"),
        schema="date STRING, amount STRING, description STRING",
    )


def seconds_a_file(spark: SparkSession, name: str, count: int) -> float:
    folder = Path(settings().folder(name))
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.csv").write_text(f"date,amount,description\n{ROWS}")
    jvm = driver.jvm_pid()
    engine = database.connect(settings().control_url)
    keeper = LeaseRenewer(engine, Holder.here(name, jvm), settings().lease_seconds, lambda why: driver.halt(jvm, why))
    keeper.take([f"bronze.{name}"])
    keeper.start()
    try:
        begin = cpu_seconds()
        Host(spark, engine, keeper, name).run_once([table(name)])
        return (cpu_seconds() - begin) / count
    finally:
        keeper.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sources", description=__doc__.splitlines()[0])
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=10_000)
    given = parser.parse_args()
    with session(Catalog({})) as spark:
        seconds_a_file(spark, "warm_up", given.few)
        few, many = seconds_a_file(spark, "few", given.few), seconds_a_file(spark, "many", given.many)
    print(f"CPU a file: {few * 1000:.1f} ms of {given.few:,} files, {many * 1000:.1f} ms of {given.many:,}")
    print(f"ratio {many / few:.2f} (aim: not above 1)")


if __name__ == "__main__":
    report(main)
