"""Erase subjects: spark-submit jobs/erase.py --number N [--approved-by NAME]

Executes an erasure that `sluice erase` has planned, once somebody has approved it, or completes one whose job died. It
ends with a scan of all objects of the lake and the home. Only if that finds nothing, the erasure is done, and has its
certificate. --approved-by names the approver for the audit, if the approval was not given in Airflow.

Exit codes: 0 done, or nothing to do; 2 unknown option or number, or no approval, 3 a table file is wrong,
4 the database, broker or store does not answer, 5 another job has a table, 6 the lease was lost, 8 it
failed, or the scan found something, 9 it failed and no retry cures that.
"""

import argparse

from include import catalog, logs
from include.engine.jobs import erase
from include.errors import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="erase.py", description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, required=True, metavar="N", help="of an erasure that was planned")
    parser.add_argument("--approved-by", metavar="NAME", help="who approved it, where that was not in Airflow")
    arguments = parser.parse_args()
    logs.start()
    erase.resume(arguments.number, catalog.load(), arguments.approved_by)


if __name__ == "__main__":
    report(main)
