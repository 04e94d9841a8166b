"""The command `sluice`: its help, options and output, and that it runs from any directory."""

import inspect
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from include import catalog
from include.catalog import Catalog
from include.cli import main as cli
from include.control.flows import incidents
from include.control.flows.alarms import AlarmKind
from include.control.jobs import backfills, windows
from include.control.store import database
from include.control.supervision import supervision
from include.errors import INTERRUPTED, READER_GONE, SluiceError, UsageError
from include.local import install
from include.project.ranges import Slice
from include.settings import settings
from include.spec import Flow, Kafka
from tests.conftest import ROOT
from tests.support.account import StoredTable, kafka_rows

NAMES = [*cli.NAMES, *cli.KINDS]
# These do something, and print a sentence about it. Metrics have a form of their own.
WITHOUT_JSON = {"up", "down", "demo", "check", "new-table", "remove-examples", "hold", "release-hold", "metrics"}
WITHOUT_JSON |= {"restart", "stop", "start", "drain", "move", "ack", "report"}
LINES, COLUMNS = 24, 80
TABLE = "bronze.clicks"
ARGUMENTS = {
    **dict.fromkeys(("expectations", "quarantine", "inspect", "plan", "progress"), (TABLE,)),
    "explain": (TABLE, "--version", "1"),
    "audit": ("verify",),
    "erase": ("--subject", "user-4711", "--dry-run"),
    "rewind": (TABLE, "2999-01-01"),
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """`run("status", "--json")` runs the command in this process, and returns its output."""

    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sluice", *arguments])
        capsys.readouterr()
        cli.main()
        return capsys.readouterr().out

    return command


def test_the_version_is_the_one_that_the_changelog_begins_with(run: Callable[..., str]):
    heading = re.search(r"^## (\S+), not released yet$|^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading, "CHANGELOG.md has no version"
    assert run("--version") == run("-V") == f"sluice {heading[1] or heading[2]}\n"


@pytest.fixture
def stored(home: Path, own_settings, monkeypatch: pytest.MonkeyPatch) -> StoredTable:
    """A bronze table with a batch, a window and a backfill, in a home of its own."""
    own_settings(SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}", SLUICE_KAFKA="127.0.0.1:1")
    table = StoredTable(Flow(name=TABLE, comment="", source=Kafka("t"), schema="offset BIGINT"))
    table.create(kafka_rows(0, 0))
    table.batch(0, None, {"t": {"0": 10}}, kafka_rows(0, 10))
    monkeypatch.setattr(catalog, "load", lambda: Catalog({TABLE: table.table}))
    engine = database.connect(settings().control_url)
    windows.plan(engine, TABLE, "ann", "optimize: 38 small files", is_worth_it=True)
    backfills.begin(engine, TABLE, Slice(), "ann")
    return table


def on_a_terminal(*arguments: str) -> str:
    """What the command prints on a terminal of 24 lines and 80 columns."""
    terminal, side = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm"}
    command = [sys.executable, "-m", "include.cli", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **size}, stdout=side, stderr=side)
    os.close(side)
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:
        # Linux ends the output of a terminal that nobody holds with an error.
        pass
    os.close(terminal)
    assert process.wait(60) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", b"".join(parts).decode()).replace("\r\n", "\n")


def require_fits(text: str) -> None:
    assert len(text.splitlines()) < LINES, "the prompt takes a line, too"
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_the_help_fits_a_screen_and_names_every_command(run):
    plain, on_terminal = run("--help"), on_a_terminal()
    for text in (plain, on_terminal):
        require_fits(text)
        assert set(cli.NAMES) <= set(re.findall(r"[a-z][a-z-]+", text))
        assert all(title in text for title in cli.COMMANDS)
    assert "╭" in on_terminal
    assert plain.isascii()
    assert run() == run("-h") == run("help") == plain


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_fits_a_screen_and_explains_each_option(run, name: str):
    text = run(name, "--help")
    require_fits(text)
    assert text.isascii()
    assert text.startswith(f"Usage: sluice {name} ")
    assert (text.splitlines()[2:3] or [""])[0].strip(), "what it does"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_that_prints_data_has_json(name: str):
    assert ("as_json" in inspect.signature(cli.function_of(name)).parameters) == (name not in WITHOUT_JSON)


# A preview needs Spark, and that of a reset waits for a broker.
@pytest.mark.parametrize("name", sorted({*NAMES} - WITHOUT_JSON - {"preview", "rebuild"}))
def test_json_on_standard_output_is_one_document(run, stored, name: str, capsys):
    arguments = ARGUMENTS.get(name, ())
    try:
        document = json.loads(run(name, *arguments, "--json"))
    except SluiceError as error:
        assert (name, isinstance(error, UsageError)) == ("rewind", True)
        document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict | list)


def test_status_and_processes_begin_with_what_is_wrong(run, stored):
    engine = database.connect(settings().control_url)
    supervision.heartbeat(engine)
    with database.transaction(engine) as connection:
        incidents.begin(connection, TABLE, AlarmKind.WINDOW_FAILED, "the disk is full")
    headline = f"1 of 1 flows needs you: WINDOW FAILED window {TABLE}."
    status, processes = run("status"), run("processes")
    assert (status.splitlines()[0], processes.startswith(headline)) == (headline, True)
    assert f"""  command  airflow dags trigger maintain -c '{{"table": "{TABLE}"}}'""" in status.splitlines()
    document = json.loads(run("status", "--troubles", "--json"))
    assert (document["headline"], len(document["troubles"])) == (headline, 1)
    assert {"backfill 1", "window 1"} == {work["subject"] for work in document["work"]}
    [flow] = json.loads(run("status", "--json"))
    assert [trouble["reason"] for trouble in flow["troubles"]] == ["the disk is full"]


def test_the_list_of_jobs_is_of_all_kinds_newest_first(run, stored):
    first, *_ = lines = run("jobs").splitlines()
    assert first.startswith("backfill    1  ")
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["backfill", "window"]
    assert [line.strip() for line in lines if "small files" in line] == ["optimize: 38 small files"]
    document = json.loads(run("jobs", TABLE, "--json"))
    assert [(job["kind"], job["number"]) for job in document["jobs"]] == [("backfill", 1), ("window", 1)]
    assert document["stale"] == []
    assert json.loads(run("jobs", "--kind", "window", "--json"))["jobs"] == [
        {"kind": "window", **window} for window in json.loads(run("windows", "--json"))
    ]
    assert len(json.loads(run("jobs", "--limit", "1", "--json"))["jobs"]) == 1
    assert run("jobs", "--kind", "rewind") == "no job yet\n"
    with pytest.raises(UsageError, match="did you mean 'bronze.clicks'"):
        run("jobs", "bronze.click")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("statu",), "'statu' is not a command: did you mean 'status'?"),
        (("new_table",), "'new_table' is not a command: did you mean 'new-table'?"),
        (("window",), "'window' is not a command: did you mean 'windows'?"),
        (("zip",), "'zip' is not a command: there are up, down, "),
        (("--json", "status"), "'--json' stands before the command: write the command first"),
        (("status", "--jsn"), "No such option: --jsn (Possible options: --json): `sluice status --help` says what"),
        (("inspect",), "Missing argument 'TABLE': `sluice inspect --help` says what it takes"),
        (("jobs", "--limit", "x"), "Invalid value for '--limit': "),
        *((("jobs", "--limit", number), "Invalid value for '--limit': ") for number in ("0", "-1", "1" + "0" * 30)),
        (("jobs", "--kind", "cron"), "'cron' is not one of 'window', 'backfill', 'rewind'"),
        (("status", "gold.x"), "unexpected extra argument"),
    ],
)
def test_a_call_that_cannot_be_meant_is_one_sentence_with_what_to_write(run, arguments, sentence: str):
    with pytest.raises(UsageError) as error:
        run(*arguments)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def process(*command: str, cwd: Path = ROOT, **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        command, cwd=cwd, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("arguments", [("--help",), ("metrics", "--help"), ("metrics",)], ids=" ".join)
def test_a_command_whose_reader_has_left_ends_silently(home: Path, arguments):
    command = process(sys.executable, "-m", "include.cli", *arguments, SLUICE_EXAMPLES="off")
    command.stdout.close()
    assert (command.stderr.read(), command.wait(60)) == ("", READER_GONE)
    command.stderr.close()


def test_ctrl_c_ends_a_command_without_a_stack_trace(home: Path):
    command = process(sys.executable, "-m", "include.cli", "metrics", "--port", "0", SLUICE_EXAMPLES="off")
    assert command.stdout.readline().startswith("metrics at ")
    command.send_signal(signal.SIGINT)
    assert (command.communicate(timeout=60), command.returncode) == (("", ""), INTERRUPTED)


@pytest.fixture
def installed(tmp_path: Path, own_settings) -> Path:
    """The script of a home whose name has blanks and quotes."""
    home = tmp_path / """a home of "Müller's" \\ (x)"""
    home.mkdir()
    own_settings(SLUICE_HOME=home, SLUICE_VENV=sys.prefix)
    install.write_command()
    return install.command()


def test_the_script_knows_its_checkout_and_its_home_from_any_directory(installed: Path, tmp_path: Path):
    assert installed == settings().home / "bin" / "sluice", "the environment may serve other homes, too"
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "include").mkdir(parents=True)
    (elsewhere / "include" / "__init__.py").write_text("raise SystemExit('another checkout')")
    shell = dict.fromkeys(("SLUICE_HOME", "SLUICE_VENV", "SLUICE_CONTROL_URL", "PYTHONPATH"), "")
    run = process(str(installed), "jobs", "--json", cwd=elsewhere, **shell)
    assert run.communicate(timeout=60) == ('{\n  "jobs": [],\n  "stale": []\n}\n', "")
    assert run.returncode == 0
    assert (settings().home / "control.db").exists()


def test_the_script_takes_the_settings_of_the_platform_unless_the_shell_has_others(installed: Path, tmp_path: Path):
    names = ("control 'a'.db", "b.db")
    first, second = (f"sqlite:///{tmp_path / name}" for name in names)
    (settings().home / "env.sh").write_text(f"export SLUICE_CONTROL_URL={shlex.quote(first)}\n")
    shell = {name: value for name, value in os.environ.items() if name != "SLUICE_CONTROL_URL"}
    for name, own in zip(names, ({}, {"SLUICE_CONTROL_URL": second}), strict=True):
        subprocess.run([installed, "jobs"], cwd=tmp_path, env={**shell, **own}, check=True, timeout=60)
        assert (tmp_path / name).exists()
        assert not (tmp_path / "b.db").exists() or own


def test_an_environment_within_the_home_has_the_script_beside_its_python(home: Path, own_settings, monkeypatch):
    monkeypatch.delenv("SLUICE_VENV", raising=False)
    assert install.command() == home / "venv" / "bin" / "sluice"
    own_settings(SLUICE_VENV=home / "python" / "3.11")
    assert install.command() == home / "python" / "3.11" / "bin" / "sluice"


def test_a_preview_is_the_job_with_the_same_options(home: Path, tmp_path: Path, own_settings):
    own_settings(SLUICE_VENV=tmp_path / "venv")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    program = tmp_path / "venv" / "bin" / "spark-submit"
    program.write_text('#!/bin/sh\nprintf \'%s\\n\' "$SPARK_CONF_DIR" "$@"\n')
    program.chmod(0o755)
    options = ["--flow", "silver.a.eu", "--rows", "5", "--from-file", "a sample.json", "--json"]
    run = process(sys.executable, "-m", "include.cli", "preview", "silver.a", *options)
    output, error = run.communicate(timeout=60)
    assert (run.returncode, error) == (0, "")
    conf, job, *arguments = output.splitlines()
    assert (conf, job) == (str(home / "conf" / "spark"), str(ROOT / "jobs" / "preview.py"))
    pairs = dict(zip(arguments[:-1:2], arguments[1::2], strict=True))
    assert pairs == {"--table": "silver.a", **dict(zip(options[:-1:2], options[1::2], strict=True))}
    assert arguments[-1] == "--json"
