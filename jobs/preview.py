"""Show what today's code makes of rows of a table's source, and the rules they break; nothing is written:

spark-submit jobs/preview.py --table TABLE [--flow NAME] [--rows N] [--from-file FILE] [--show-personal] [--json]

Reads the newest rows of the source of TABLE: a topic, a folder, or a table. An aggregate is computed for the buckets of
these rows. An aggregate without buckets, and a view, are computed from all rows of the source. The job takes no lease,
and runs next to the flows.

With --from-file, the rows of FILE replace those of the source: JSON lines, CSV or Parquet. If the source has messages
in a column `value` and FILE has no such column, each line is one message. For a folder, FILE is a file of that folder's
format.

Exit codes: 0 shown, whatever rules the rows break; 2 unknown table, flow or option, or a wrong file, 3 a table file is
wrong, 4 the broker or a source table does not answer, 8 no row can be computed, 9 the same, and no retry cures that.
"""

import argparse
from pathlib import Path

from include import catalog
from include.catalog import Catalog
from include.engine.preview import preview_report
from include.engine.preview.preview import PreviewRequest, previews
from include.engine.session import open_session
from include.errors import UsageError, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="preview.py", description=__doc__.splitlines()[0])
    parser.add_argument("--table", required=True, metavar="TABLE", help="a table, a view, or a temporary step")
    parser.add_argument("--flow", metavar="NAME", help="the one flow of several, or the one source of a view")
    parser.add_argument("--rows", type=int, default=100, metavar="N", help="how many to read and to show (100)")
    parser.add_argument("--from-file", type=Path, metavar="FILE", help="whose rows stand for those of the source")
    parser.add_argument(
        "--show-personal", action="store_true", help="`sluice preview` asks for a reason, and audits it"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    arguments = parser.parse_args()
    if arguments.rows < 1:
        raise UsageError(f"--rows is {arguments.rows}: name a number above 0")
    tables = catalog.load()
    # An empty catalog: the session must not create folders for tables.
    spark = open_session(f"sluice preview {arguments.table}", Catalog({}))
    request = PreviewRequest(
        *(spark, tables, arguments.rows, arguments.from_file, arguments.flow), shows_personal=arguments.show_personal
    )
    reports = previews(request, arguments.table)
    if arguments.json:
        print(preview_report.as_json(arguments.table, reports))
        return
    for preview in reports:
        print("\n".join([*preview_report.lines(preview), "Nothing was written."]))


if __name__ == "__main__":
    report(main)
