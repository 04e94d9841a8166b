"""Run flows in this Spark driver: spark-submit jobs/stream.py [--flow NAME ...] [--driver NAME] [--once]

Without --flow, it runs all flows of the driver (`main` by default), as Airflow does. A failed flow does not affect the
others, and starts again when the supervisor allows it. With --flow, it runs these flows until they are stopped or one
fails. With --once, each flow reads its source to the end, and the job ends.

Exit codes: 0 done, 2 unknown flow or option, 3 a table file is wrong, 4 the broker, database or source does not answer,
5 another driver holds a flow, 6 the lease was lost, 8 a flow failed, 9 a flow failed and no retry cures that.
"""

import argparse

from include import catalog
from include.engine.jobs.job_runner import JobRunner
from include.engine.stream import driver
from include.errors import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="stream.py", description=__doc__.splitlines()[0])
    parser.add_argument("--flow", action="append", metavar="NAME", help="a flow to run; may be given again")
    parser.add_argument("--driver", metavar="NAME", default="main", help="the driver whose flows to run")
    parser.add_argument("--once", action="store_true", help="stop when the source is read to its end")
    arguments = parser.parse_args()
    if arguments.flow:
        tables = catalog.load()
        chosen = {tables.flow(name).flow for name in arguments.flow}
        flows = [flow for name, flow in tables.flows.items() if name in chosen]
        driver_name = None
    else:
        driver_name = None if arguments.once else arguments.driver
        flows = driver.flows_of(arguments.driver)
    driver.run(flows, driver_name, arguments.once, JobRunner)


if __name__ == "__main__":
    report(main)
