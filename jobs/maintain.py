"""Keep one table in shape, in a window: spark-submit jobs/maintain.py --table NAME [--window NUMBER] [--dry-run]

Prints what is worth doing and why, and waits until the table's flows wait at their gate. Then it merges what was
gathered for the table, compacts small files, deletes files and log entries that nobody needs any more, and releases the
flows. With --dry-run it only prints the plan, and lists what would be deleted. --window: a window that is already
planned.

Exit codes: 0 done, or nothing to do; 2 unknown table or option, 3 a table file is wrong, 4 the broker or the database
does not answer, 5 another window of the table is open or requested, 6 the lease was lost, 8 the window failed.
"""

import argparse

from include import catalog, logs
from include.engine.jobs import window
from include.errors import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="maintain.py", description=__doc__.splitlines()[0])
    parser.add_argument("--table", required=True, metavar="NAME", help="the table")
    parser.add_argument("--window", type=int, metavar="NUMBER", help="a window of the calendar that is planned")
    parser.add_argument("--reason", default="by hand", metavar="TEXT", help="for the record, where Airflow has none")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    arguments = parser.parse_args()
    logs.start()
    tables = catalog.load()
    table = tables.table(arguments.table)
    if arguments.dry_run:
        window.dry_run(table, tables)
    else:
        window.run(table, tables, arguments.window, arguments.reason)


if __name__ == "__main__":
    report(main)
