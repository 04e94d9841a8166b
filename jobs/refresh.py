"""Refresh materialized views: spark-submit jobs/refresh.py --table NAME [--run ID]

Computes the view NAME anew and replaces it in one commit, which no reader sees half. Of a table that is no view, all
views that read it, or what is made of it, once each, those that others read first, and all from one version of each
table. Killed, it is run again with the same --run: it does what is left, from the same versions; a run that is done
does nothing. Without --run it gives itself a name, and says which. A view that reads what is not stored yet is left
as it was, and named.

Exit codes: 0 done, or nothing to do; 2 unknown table or option, 3 a table file is wrong, 4 database or a table that it
reads does not answer, 5 another window of a view is open or asked for, 6 the lease was lost, 8 it failed, 9 it failed
in a way that no retry cures.
"""

import argparse
from datetime import UTC, datetime

from include import catalog
from include.engine.jobs import refresh
from include.errors import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="refresh.py", description=__doc__.splitlines()[0])
    parser.add_argument("--table", required=True, metavar="NAME", help="a view, or a table that views are made of")
    parser.add_argument("--run", metavar="ID", help="what this run is called; one that is done is not done again")
    arguments = parser.parse_args()
    tables = catalog.load()
    table = tables.table(arguments.table)
    name = arguments.run or f"by hand {datetime.now(UTC).isoformat(timespec='microseconds')}"
    print(f"sluice: refresh of {table.name}, --run '{name}'", flush=True)
    refresh.run(name, [table] if table.is_view else tables.views_below(table.name), tables)


if __name__ == "__main__":
    report(main)
