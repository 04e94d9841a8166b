"""Make rows again, by today's code:

spark-submit jobs/backfill.py --table TABLE --from MOMENT --to MOMENT [--alone] [--run ID] [--dry-run]
spark-submit jobs/backfill.py --table TABLE --full [--alone] [--run ID] [--dry-run]
spark-submit jobs/backfill.py --replay-quarantine TABLE [--rule NAME ...] [--dry-run]

The first makes the rows of TABLE whose time column lies from MOMENT to before MOMENT (ISO 8601; UTC without a zone)
again from what its flow has read so far, puts them in the place of the old ones, and goes on with the tables below it.
An aggregate without buckets is made as a whole, without --from and --to. The streams go on.

The second is a full refresh: all rows of TABLE and of its quarantine, in the same way. What Kafka or a folder feeds, or
its file declares otherwise than it is stored, is read again from the beginning of its source. With --alone no table
below follows, and those are STALE.

The third puts the quarantined rows of TABLE that are good by today's rules into the table, each exactly once, and says
how many are still bad, by rule. With --rule, only rows that broke one of these rules; late rows only where theirs is
named, as in --rule "later than 30 minutes".

Killed, each is run again: nothing is lost or doubled. With --dry-run they only say what they would do.

Exit codes: 0 done, or nothing to do; 2 unknown table, rule or option, or a table that cannot be backfilled, 3 a table
file is wrong, 4 database or a table it looks into does not answer, 5 another job has the table, 6 the lease was lost,
8 it failed, 9 it failed in a way that no retry cures.
"""

import argparse

from include import catalog
from include.engine.jobs import backfill, replay
from include.errors import UsageError, report
from include.validation import slices


def main() -> None:
    parser = argparse.ArgumentParser(prog="backfill.py", description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table", metavar="TABLE", help="the table to make a range of again")
    which.add_argument("--replay-quarantine", metavar="TABLE", help="the table to put rows back into")
    parser.add_argument("--from", dest="begin", metavar="MOMENT", help="where the range begins")
    parser.add_argument("--to", dest="end", metavar="MOMENT", help="before which it ends")
    parser.add_argument("--full", action="store_true", help="all rows of the table")
    parser.add_argument("--alone", action="store_true", help="leave the tables below as they are: they are STALE then")
    parser.add_argument("--run", default="by hand", metavar="ID", help="who asks for it, for the record")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="a rule; may be given again")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    asked = parser.parse_args()
    tables = catalog.load()
    if asked.table:
        if asked.rule:
            raise UsageError("--rule is for --replay-quarantine: leave it out")
        table = tables.table(asked.table)
        range_ = slices.of(table, asked.begin, asked.end, as_a_whole=asked.full)
        backfill.run(table, tables, range_, asked.run, asked.dry_run, asked.alone)
    else:
        replay.run(tables.table(asked.replay_quarantine), tables, asked.rule, asked.dry_run)


if __name__ == "__main__":
    report(main)
