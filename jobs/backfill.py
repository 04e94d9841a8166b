"""Make rows again, by today's code:

spark-submit jobs/backfill.py --table TABLE --from MOMENT --to MOMENT [--alone] [--run ID] [--dry-run]
spark-submit jobs/backfill.py --table TABLE --full [--alone] [--run ID] [--dry-run]
spark-submit jobs/backfill.py --replay-quarantine TABLE [--rule NAME ...] [--run ID] [--dry-run]

The first form recomputes the rows of TABLE whose time column lies from MOMENT to before MOMENT (ISO 8601; UTC without a
zone). It reads what the flow has read so far, replaces the old rows, and continues with the tables below. An aggregate
without buckets is recomputed as a whole, without --from and --to. The streams continue.

The second form is a full refresh: it recomputes all rows of TABLE and of its quarantine in the same way. A table is
read again from the beginning of its source if Kafka or a folder feeds it, or if its file differs from the stored table.
With --alone the tables below are not recomputed, and become STALE.

The third form moves the quarantined rows of TABLE that satisfy today's rules into the table, each exactly once, and
prints how many are still bad, by rule. With --rule, it moves only rows that broke one of these; late rows only so.

A killed job can be run again: nothing is lost or doubled. With --dry-run it only prints what it would do.

Exit codes: 0 done, or nothing to do; 2 unknown table, rule or option, or a table that cannot be backfilled, 3 a table
file is wrong, 4 the database or a source table does not answer, 5 another job has the table, 6 the lease was lost, 8 it
failed, 9 it failed and no retry cures that.
"""

import argparse

from include import catalog, logs
from include.engine.jobs import backfill, replay
from include.errors import UsageError, report
from include.project import ranges


def main() -> None:
    parser = argparse.ArgumentParser(prog="backfill.py", description=__doc__.splitlines()[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--table", metavar="TABLE", help="the table to make a range of again")
    group.add_argument("--replay-quarantine", metavar="TABLE", help="the table to move rows into")
    parser.add_argument("--from", dest="begin", metavar="MOMENT", help="where the range begins")
    parser.add_argument("--to", dest="end", metavar="MOMENT", help="before which it ends")
    parser.add_argument("--full", action="store_true", help="all rows of the table")
    parser.add_argument("--alone", action="store_true", help="leave the tables below as they are: they are STALE then")
    parser.add_argument("--run", default="by hand", metavar="ID", help="who asks for it, for the record")
    parser.add_argument("--reason", default="by hand", metavar="TEXT", help="for the record, where Airflow has none")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="a rule; may be given again")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    arguments = parser.parse_args()
    logs.start()
    tables = catalog.load()
    if arguments.table and arguments.rule:
        raise UsageError("--rule is for --replay-quarantine: leave it out")
    table = tables.table(arguments.table or arguments.replay_quarantine)
    if arguments.table:
        range_ = ranges.parse_slice(table, arguments.begin, arguments.end, as_a_whole=arguments.full)
        backfill.run(table, tables, range_, arguments.run, arguments.dry_run, arguments.alone, arguments.reason)
    else:
        replay.run(table, tables, arguments.rule, arguments.dry_run, arguments.run, arguments.reason)


if __name__ == "__main__":
    report(main)
