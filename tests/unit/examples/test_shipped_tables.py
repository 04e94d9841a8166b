"""The shipped examples are tables like any other, and a project can do without them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from include import catalog
from include.errors import DeclarationError, UsageError
from include.examples import FEEDS
from include.local import up
from tests.conftest import ROOT


@pytest.fixture
def anew(own_settings) -> Iterator[None]:
    """What is loaded here is loaded from these settings, and by nobody else."""
    catalog.load.cache_clear()
    yield
    catalog.load.cache_clear()


def test_examples_that_are_off_are_neither_declared_nor_fed(own_settings, anew):
    assert "gold.heart_rate_by_model" in catalog.load().tables
    assert up._feed_modules() == FEEDS
    catalog.load.cache_clear()
    own_settings(SLUICE_EXAMPLES="off")
    assert catalog.load().tables == {}
    assert up._feed_modules() == {}


def test_the_setting_is_on_or_off(own_settings):
    own_settings(SLUICE_EXAMPLES="no")
    with pytest.raises(UsageError) as refused:
        catalog.has_examples()
    assert str(refused.value) == "SLUICE_EXAMPLES is 'no': set it to on or off"


def test_a_table_file_that_comes_or_changes_is_noticed(tmp_path: Path, monkeypatch):
    shutil.copytree(ROOT / "include" / "examples" / "tables", tmp_path / "shop")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "table_packages", lambda: ("shop",))
    before = catalog.file_versions()
    assert catalog.file_versions() == before
    new = tmp_path / "shop" / "gold" / "new.py"
    new.write_text("")
    with_new = catalog.file_versions()
    assert len(with_new) == len(before) + 1
    new.write_text("TABLE = 1")
    assert catalog.file_versions() != with_new


def test_two_files_cannot_declare_one_table(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for package in ("here", "there"):
        (tmp_path / package / "bronze").mkdir(parents=True)
        for init in (f"{package}/__init__.py", f"{package}/bronze/__init__.py"):
            (tmp_path / init).touch()
        (tmp_path / package / "bronze" / "orders.py").write_text(
            "from include.spec import Kafka, Table\n"
            'TABLE = Table(name="bronze.orders", comment="", source=Kafka("orders"))\n'
        )
    with pytest.raises(DeclarationError) as refused:
        catalog.require("here", "there")
    assert "there/bronze/orders.py: here/bronze/orders.py declares bronze.orders, too" in str(refused.value)
