"""Put mended rows back: spark-submit jobs/backfill.py --replay-quarantine TABLE [--rule NAME ...] [--dry-run]

Judges the rows in the quarantine of TABLE by today's rules, and puts the good ones into the table, each exactly once; a
row whose identity the table holds by now is a repeated one and goes. Says how many are still bad, by rule. With --rule,
only rows that broke one of these rules; rows that came too late are let in by naming that rule only, as in
--rule "later than 30 minutes". Rows may be mended by an UPDATE of the quarantine while the flow is stopped. The table's
flows step aside meanwhile. Killed, it is run again: nothing is lost or doubled. With --dry-run it only counts.

Exit codes: 0 done, or nothing to do; 2 unknown table, rule or option, 3 a table file is wrong, 4 database or a table it
looks into does not answer, 5 another window of the table is open or asked for, 6 the lease was lost, 8 it failed, 9 it
failed in a way that no retry cures.
"""

import argparse

from include import catalog
from include.engine import replay
from include.errors import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="backfill.py", description=__doc__.splitlines()[0])
    parser.add_argument("--replay-quarantine", required=True, metavar="TABLE", help="the table to put rows back into")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="a rule; may be given again")
    parser.add_argument("--dry-run", action="store_true", help="say how many rows would go back, and do nothing")
    arguments = parser.parse_args()
    tables = catalog.load()
    replay.run(tables.table(arguments.replay_quarantine), tables, arguments.rule, arguments.dry_run)


if __name__ == "__main__":
    report(main)
