"""Put a table and all that is made of it back to a moment:

spark-submit jobs/rewind.py --table TABLE --to MOMENT [--reason TEXT] [--approved-by NAME] [--dry-run]
spark-submit jobs/rewind.py --number N [--approved-by NAME]

The first form plans a rewind and executes it. It restores TABLE, and every streaming table below it, to a version at or
before MOMENT (ISO 8601; UTC without a zone): the last ones at which each table had read exactly all of the tables above
it. Then the flows recompute the undone rows with today's code, and the views below are refreshed. Whatever cannot be
recomputed exactly is refused, with the reason. With --dry-run it only prints the plan, as
`sluice rewind TABLE MOMENT` does.

The second form executes a planned and approved rewind (DAG `rewind`), or completes one whose job died. Until then its
flows stay stopped, and nobody else writes its tables. A rewind without approval is refused. --approved-by names the
approver for the audit, if the approval was not given in Airflow. In the first form it defaults to the caller.

Exit codes: 0 done, or nothing to do; 2 unknown table, option or number, or a refused rewind, 3 a table file is wrong, 4
the database or broker does not answer, 5 another job has a table, 6 the lease was lost, 8 it failed, 9 it failed and no
retry cures that, 10 it is done, and the ledger finds a difference.
"""

import argparse
import getpass

from include import catalog, logs
from include.engine.jobs import rewind
from include.errors import UsageError, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="rewind.py", description=__doc__.splitlines()[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--table", metavar="TABLE", help="the table to rewind, with all below")
    group.add_argument("--number", type=int, metavar="N", help="of a rewind that was planned")
    parser.add_argument("--to", metavar="MOMENT", help="to which moment")
    parser.add_argument("--reason", default="by hand", metavar="TEXT", help="for the record")
    parser.add_argument("--approved-by", metavar="NAME", help="who approved it, where that was not in Airflow")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    arguments = parser.parse_args()
    logs.start()
    tables = catalog.load()
    if arguments.number is not None:
        if arguments.to or arguments.dry_run:
            raise UsageError("--number names a rewind that is planned: leave --to and --dry-run out")
        rewind.resume(arguments.number, tables, arguments.approved_by)
    elif not arguments.to:
        raise UsageError("--to is missing: name the moment, such as 2026-03-01T12:00:00Z")
    else:
        table, requester = tables.table(arguments.table), getpass.getuser()
        rewind.run(table, tables, arguments.to, requester, arguments.reason, arguments.dry_run, arguments.approved_by)


if __name__ == "__main__":
    report(main)
