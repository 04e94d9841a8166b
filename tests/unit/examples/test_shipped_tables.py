"""The shipped examples are ordinary tables, and a project can switch them off."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from include import catalog
from include.errors import DeclarationError, UsageError
from include.examples import FEEDS, SHOP_FEEDS, SHOP_TOPICS, database
from include.local import feeds
from include.local.processes import Platform
from include.spec import Kafka
from tests.conftest import ROOT
from tests.support.waiting import wait_until


@pytest.fixture
def anew(own_settings) -> Iterator[None]:
    """The test loads the catalog with its own settings, and no other test gets that catalog."""
    catalog.load.cache_clear()
    yield
    catalog.load.cache_clear()


def test_examples_that_are_off_are_neither_declared_nor_fed(own_settings, anew):
    assert "gold.heart_rate_by_model" in catalog.load().tables
    assert (feeds.modules(), feeds.shop_modules()) == (FEEDS, SHOP_FEEDS)
    catalog.load.cache_clear()
    own_settings(SLUICE_EXAMPLES="off")
    assert catalog.load().tables == {}
    assert (feeds.modules(), feeds.shop_modules()) == ({}, {})


def test_the_database_of_the_shop_runs_only_where_a_table_reads_its_changes(anew, monkeypatch):
    tables = catalog.load().tables
    without_changes = {name: table for name, table in tables.items() if not isinstance(table.source, Kafka)}
    assert {*tables} - {*without_changes} > {f"bronze.{table}" for table in SHOP_TOPICS}
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "load", lambda: catalog.Catalog(without_changes))
        assert (feeds.modules(), feeds.shop_modules()) == (FEEDS, {})


def test_each_table_of_the_database_has_a_topic_and_each_topic_a_bronze_table(anew):
    assert SHOP_TOPICS.keys() == database.TABLES.keys()
    sources = {f"bronze.{table}": Kafka(topic) for table, topic in SHOP_TOPICS.items()}
    assert {name: catalog.load().table(name).source for name in sources} == sources


def test_what_of_the_shop_does_not_run_is_said_with_the_reason(anew, tmp_path: Path):
    platform = Platform(tmp_path)
    for name in SHOP_FEEDS:
        platform.start(name, ["sh", "-c", "echo 'sluice: check the network' >&2"], {"PATH": "/usr/bin:/bin"})
    wait_until(lambda: not any(platform.find(name) for name in SHOP_FEEDS), 30)
    assert feeds.notices(platform) == [
        f"'{name}' does not run (check the network): fix that, then `make up` again" for name in SHOP_FEEDS
    ]


def test_the_files_of_the_examples_are_short():
    files = (ROOT / "include" / "examples" / "tables").rglob("*.py")
    assert sum(len(file.read_text().splitlines()) for file in files) < 350


def test_the_setting_is_on_or_off(own_settings):
    own_settings(SLUICE_EXAMPLES="no")
    with pytest.raises(UsageError) as error:
        catalog.has_examples()
    assert str(error.value) == "SLUICE_EXAMPLES is 'no': set it to on or off"


def test_a_table_file_that_comes_or_changes_is_noticed(tmp_path: Path, monkeypatch):
    shutil.copytree(ROOT / "include" / "examples" / "tables", tmp_path / "shop")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "table_packages", lambda: ("shop",))
    versions_before = catalog.file_versions()
    assert catalog.file_versions() == versions_before
    new_file = tmp_path / "shop" / "gold" / "new.py"
    new_file.write_text("")
    versions_after = catalog.file_versions()
    assert len(versions_after) == len(versions_before) + 1
    new_file.write_text("TABLE = 1")
    assert catalog.file_versions() != versions_after


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
    with pytest.raises(DeclarationError) as error:
        catalog.require("here", "there")
    assert "there/bronze/orders.py: here/bronze/orders.py declares bronze.orders, too" in str(error.value)
