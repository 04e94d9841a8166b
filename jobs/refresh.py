"""Refresh materialized views: spark-submit jobs/refresh.py --table NAME [--run ID]

Computes the view NAME and replaces it in one commit, which readers see as a whole. If NAME is no view, it refreshes
every view that depends on it once, in graph order, and all from one version of each table. A killed job is run again
with the same --run: it does the rest, from the same versions. A run that is done does nothing. Without --run it chooses
an id and prints it. A view with a source that is not stored yet is left as it is, and named.

Exit codes: 0 done, or nothing to do; 2 unknown table or option, 3 a table file is wrong, 4 the database or a source
table does not answer, 5 another window of a view is open or requested, 6 the lease was lost, 8 it failed, 9 it failed
and no retry cures that.
"""

import argparse
from datetime import UTC, datetime

from include import catalog, logs
from include.engine.jobs import refresh
from include.errors import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="refresh.py", description=__doc__.splitlines()[0])
    parser.add_argument("--table", required=True, metavar="NAME", help="a view, or a table that views are made of")
    parser.add_argument("--run", metavar="ID", help="what this run is called; one that is done is not done again")
    parser.add_argument("--reason", default="by hand", metavar="TEXT", help="for the record, where Airflow has none")
    arguments = parser.parse_args()
    logs.start()
    tables = catalog.load()
    table = tables.table(arguments.table)
    name = arguments.run or f"by hand {datetime.now(UTC).isoformat(timespec='microseconds')}"
    logs.info(f"refresh of {table.name}, --run '{name}'")
    views, reason = [table] if table.is_view else tables.downstream_views(table.name), arguments.reason
    refresh.run(name, views, tables, table.name, None if arguments.run else reason)


if __name__ == "__main__":
    report(main)
