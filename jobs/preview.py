"""Show what today's code makes of rows of a table's source, and the rules they break; nothing is written:

spark-submit jobs/preview.py --table TABLE [--flow NAME] [--rows N] [--from-file FILE] [--json]

Of the newest rows of what TABLE reads: a topic, a folder, or a table. An aggregate is made for the buckets that these
rows touch; one without buckets, and a view, of all rows of its source. It runs beside the flows, and takes no lease.

With --from-file, the rows of FILE stand for those of the source: JSON lines, CSV or Parquet. Where the source keeps
messages in a column `value` that FILE has not, each line is one. For a folder, FILE is one that might land in it.

Exit codes: 0 shown, whatever the rows break; 2 unknown table, flow or option, or a wrong file, 3 a table file is wrong,
4 the broker or a table that it reads does not answer, 8 no row can be made, 9 in a way that no retry cures.
"""

import argparse
from pathlib import Path

from include import catalog
from include.catalog import Catalog
from include.engine.preview import preview_report
from include.engine.preview.preview import Asked, previews
from include.engine.session import open_session
from include.errors import UsageError, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="preview.py", description=__doc__.splitlines()[0])
    parser.add_argument("--table", required=True, metavar="TABLE", help="a table, a view, or a temporary step")
    parser.add_argument("--flow", metavar="NAME", help="the one flow of several, or the one source of a view")
    parser.add_argument("--rows", type=int, default=100, metavar="N", help="how many to read and to show (100)")
    parser.add_argument("--from-file", type=Path, metavar="FILE", help="whose rows stand for those of the source")
    parser.add_argument("--json", action="store_true", help="for programs")
    asked = parser.parse_args()
    if asked.rows < 1:
        raise UsageError(f"--rows is {asked.rows}: name a number above 0")
    tables = catalog.load()
    # No table is known to this session by its name: that would make folders.
    spark = open_session(f"sluice preview {asked.table}", Catalog({}))
    found = previews(Asked(spark, tables, asked.rows, asked.from_file, asked.flow), asked.table)
    if asked.json:
        print(preview_report.as_json(asked.table, found))
        return
    for one in found:
        print("\n".join([*preview_report.lines(one), "Nothing was written."]))


if __name__ == "__main__":
    report(main)
