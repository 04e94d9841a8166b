"""Put a table and all that is made of it back to a moment:

spark-submit jobs/rewind.py --table TABLE --to MOMENT [--reason TEXT] [--approved-by NAME] [--dry-run]
spark-submit jobs/rewind.py --number N [--approved-by NAME]

The first plans it and does it: TABLE, and every streaming table below it, goes back to its last version at MOMENT (ISO
8601; UTC without a zone) or before at which each had read what is above it exactly to the end; then their flows make
again, by today's code, what was undone. Views below are refreshed. What cannot be made again exactly is refused, with
the reason. With --dry-run it only says what it would do, as `python -m include.ledger rewind TABLE MOMENT` does.

The second does one that was planned and approved (DAG `rewind`), or ends one whose job died: until then its flows stay
stopped, and nobody else writes its tables. One that nobody has approved is refused. --approved-by says who did where
that was not in Airflow, for the audit; of the first form it is who calls it, unless it names another.

Exit codes: 0 done, or nothing to do; 2 unknown table, option or number, or a rewind that is refused, 3 a table file is
wrong, 4 database or broker does not answer, 5 another job has a table, 6 the lease was lost, 8 it failed, 9 it failed
in a way that no retry cures, 10 it is done, and the ledger finds a difference.
"""

import argparse
import getpass

from include import catalog
from include.engine.jobs import rewind
from include.errors import UsageError, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="rewind.py", description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table", metavar="TABLE", help="the table to put back, with all below")
    which.add_argument("--number", type=int, metavar="N", help="of a rewind that was planned")
    parser.add_argument("--to", metavar="MOMENT", help="to which moment")
    parser.add_argument("--reason", default="by hand", metavar="TEXT", help="for the record")
    parser.add_argument("--approved-by", metavar="NAME", help="who approved it, where that was not in Airflow")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    asked = parser.parse_args()
    tables = catalog.load()
    if asked.number is not None:
        if asked.to or asked.dry_run:
            raise UsageError("--number names a rewind that is planned: leave --to and --dry-run out")
        rewind.resume(asked.number, tables, asked.approved_by)
    elif not asked.to:
        raise UsageError("--to is missing: name the moment, such as 2026-03-01T12:00:00Z")
    else:
        table, who = tables.table(asked.table), getpass.getuser()
        rewind.run(table, tables, asked.to, who, asked.reason, asked.dry_run, asked.approved_by)


if __name__ == "__main__":
    report(main)
