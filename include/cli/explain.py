"""The command `explain`: what is in a version of a table, and where a record or a file ended."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from include import catalog
from include.errors import UsageError
from include.ledger import provenance, trace
from include.ledger.trace import TraceStep


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("explain", help="what is in a version, or where a Kafka record or a file ended")
    parser.add_argument("table", nargs="?", help="with --version or --file")
    parser.add_argument(
        "--version", type=int, metavar="N", help="of the table: which offsets, versions, files are in it"
    )
    parser.add_argument("--file", metavar="NAME", help="below the folder of the table's source: where it ended")
    parser.add_argument("--topic", help="with --partition and --offset: where that record ended")
    parser.add_argument("--partition", type=int, metavar="N")
    parser.add_argument("--offset", type=int, metavar="N")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    tables = catalog.load()
    record = (arguments.topic, arguments.partition, arguments.offset)
    is_given = [part is not None for part in record]
    forms = [arguments.version is not None, arguments.file is not None, any(is_given)]
    if sum(forms) != 1 or any(is_given) != all(is_given) or (arguments.table is None) != any(is_given):
        raise UsageError("explain takes TABLE --version N, TABLE --file NAME, or --topic T --partition P --offset O")
    if arguments.version is not None:
        origin = provenance.of_version(tables, tables.table(arguments.table), arguments.version)
        print(json.dumps(asdict(origin), indent=2) if arguments.json else "\n".join(provenance.lines(origin)))
        return
    if arguments.file is not None:
        stops = [trace.of_file(tables, tables.table(arguments.table), arguments.file)]
    else:
        stops = trace.of_record(tables, *record)
    if arguments.json:
        print(json.dumps([asdict(stop) for stop in stops], indent=2))
        return
    print("\n".join(line for stop in stops for line in _lines(stop)))


def _lines(stop: TraceStep, depth: int = 0) -> Iterator[str]:
    yield f"{'  ' * depth}{stop.sentence}"
    for stop_below in stop.below:
        yield from _lines(stop_below, depth + 1)
