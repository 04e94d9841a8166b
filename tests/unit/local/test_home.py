"""A home directory may have any name, and `make clean` deletes nothing but a home."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from include.errors import SetupError
from include.local import home as homes
from include.local.home import MARK
from tests.conftest import ROOT

# Two names with spaces, quotes, umlauts and characters of shells and of make, one of 200 characters.
SHORT = 'a home of "Müller\'s" $HOME `id` #1 \\ (x); 100%'
LONG = "ein langes Zuhause für 'Käufer' " + "ä" * 20 + " und noch etwas"


def make(target: str, home: Path, **variables: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"SLUICE_HOME": str(home), "SLUICE_EXAMPLES": "off", **variables}
    return subprocess.run(["make", target], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", [SHORT, LONG.ljust(200, "x")], ids=["short", "long"])
def test_a_home_of_any_name_is_looked_at_stopped_and_deleted(tmp_path: Path, name: str):
    home, sibling = tmp_path / name, tmp_path / name.split()[0]
    # A new home must have no dollar sign, which Airflow expands. One that exists already keeps its name.
    home.mkdir()
    homes.create(home)
    (sibling / "keep").mkdir(parents=True)
    # `true` in place of Python leaves the environment of the tests as it is.
    status = make("status", home, PYTHON="true")
    assert (status.returncode, status.stderr) == (0, "")
    assert "nothing is running" in status.stdout
    stopped = make("down", home)
    assert (stopped.returncode, stopped.stdout) == (0, f"nothing of {home} was running\n")
    cleaned = make("clean", home, PYTHON=sys.executable)
    assert (cleaned.returncode, cleaned.stderr) == (0, "")
    assert [entry.name for entry in tmp_path.iterdir()] == [sibling.name]
    assert make("clean", home, PYTHON=sys.executable).returncode == 0


def test_a_folder_that_sluice_has_not_made_is_never_deleted(tmp_path: Path, own_settings):
    foreign = tmp_path / "documents"
    (foreign / "letters").mkdir(parents=True)
    homes.create(foreign)
    homes.create(foreign / "home")
    assert not (foreign / MARK).exists(), "it held something before"
    link = tmp_path / "link"
    link.symlink_to(foreign / "home")
    reasons = dict.fromkeys(
        (foreign, tmp_path, foreign / "letters"), "bears no mark of Sluice, and nothing was deleted"
    )
    for home, reason in {**reasons, link: f"name {foreign / 'home'} itself"}.items():
        own_settings(SLUICE_HOME=home)
        with pytest.raises(SetupError, match=re.escape(reason)):
            homes.clean()
    cleaned = make("clean", foreign, PYTHON=sys.executable)
    assert (cleaned.returncode, "bears no mark of Sluice" in cleaned.stderr) == (2, True)
    assert (foreign / "home" / MARK).exists()
    assert (foreign / "letters").is_dir()


def test_a_home_of_an_earlier_release_is_known_by_what_is_in_it_and_by_nothing_else_in_it(tmp_path: Path):
    for name in ("airflow", "lake", "log", "venv"):
        (tmp_path / name).mkdir()
    assert homes.refusal(tmp_path) == "bears no mark of Sluice"
    for name in ("env.sh", "control.db", "control.db-wal"):
        (tmp_path / name).touch()
    assert homes.refusal(tmp_path) is None
    (tmp_path / "thesis.pdf").touch()
    assert homes.refusal(tmp_path) == "bears no mark of Sluice and holds thesis.pdf"


def test_a_directory_that_holds_more_than_a_home_is_refused_even_with_the_mark(tmp_path: Path, monkeypatch):
    (tmp_path / MARK).touch()
    assert homes.refusal(tmp_path) is None
    monkeypatch.setattr(homes, "ROOT", tmp_path / "work" / "sluice")
    assert homes.refusal(tmp_path) == "holds this checkout"
    monkeypatch.setattr(homes, "ROOT", tmp_path)
    assert homes.refusal(tmp_path) == "holds this checkout"
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert homes.refusal(tmp_path) == "holds your own home directory"


def test_a_home_that_cannot_be_written_or_named_is_refused_in_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "home", tmp_path / ("x" * 300)):
        with pytest.raises(SetupError, match=r"where nothing can be written \(.*\): choose a directory of yours"):
            homes.create(home)
    for character in homes.FORBIDDEN:
        with pytest.raises(SetupError, match=f"which has {re.escape(repr(character))} in it: choose another name"):
            homes.create(tmp_path / f"a{character}b")
