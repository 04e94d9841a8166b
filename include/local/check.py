"""The commands that open a Spark session, `make check` and `sluice preview`: each is replaced by a process with one."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from include import catalog
from include.control import personal_data
from include.control.requesters import system_user
from include.errors import report
from include.local import environment, install, java
from include.settings import ROOT, settings

# The check ends before the JVM's second compiler would pay off. PySpark's DataFrame debugging records the call site of
# each column expression, which takes half of the time to build a plan.
SHORT_LIVED = {
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
    "PYSPARK_SUBMIT_ARGS": "--conf spark.python.sql.dataFrameDebugging.enabled=false pyspark-shell",
}


def main(
    packages: Annotated[list[str] | None, typer.Argument(help="Of table files; without one, of this project.")] = None,
    drafts: Annotated[bool, typer.Option("--drafts", help="Check drafts, too, which stay drafts.")] = False,
) -> None:
    """Check the table files, and print a sentence for each mistake and each draft. No process stays running."""
    for sentence in catalog.draft_sentences(*(packages or ())):
        print(sentence, flush=True)
    # Without the directory in which it is called, which may be another checkout.
    command = ["-P", "-m", "include.engine.check.check", *(packages or ()), *(["--drafts"] if drafts else [])]
    _replace_by("python", command, SHORT_LIVED)


def preview(
    table: Annotated[str, typer.Argument(help="A table, a view, or a temporary step.")],
    flow: Annotated[str | None, typer.Option(help="The one flow of several, or the one source of a view.")] = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="How many to read and to show.")] = 100,
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its rows replace those of the source.")
    ] = None,
    show_personal: Annotated[
        bool, typer.Option("--show-personal", help="And personal data; --reason says why.")
    ] = False,
    reason: Annotated[str | None, typer.Option(metavar="WHY", help="For the audit, with --show-personal.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show what today's code makes of rows of a table's source, and the rules they break. Nothing is written."""
    arguments = ["--table", table, "--rows", str(rows)]
    arguments += ["--flow", flow] if flow else []
    arguments += ["--from-file", str(from_file)] if from_file else []
    if show_personal:
        tables = catalog.load()
        personal_data.shown(tables.steps.get(table) or tables.table(table), system_user(), reason)
        arguments.append("--show-personal")
    _replace_by("spark-submit", [str(ROOT / "jobs" / "preview.py"), *arguments, *(["--json"] if as_json else [])], {})


def _replace_by(program: str, arguments: list[str], defaults: dict[str, str]) -> NoReturn:
    """Replaces this process by a program of the virtual environment. defaults: variables that it gets unless set."""
    java_home = java.home()
    variables = environment.process_environment(environment.write_spark(settings(), java_home), java_home)
    command = [str(install.venv() / "bin" / program), *arguments]
    os.execve(command[0], command, {**defaults, **variables})


if __name__ == "__main__":
    report(partial(main, sys.argv[1:]))
