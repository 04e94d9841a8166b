"""A draft is a table file that declares no table until its line `# draft` is removed."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from include import catalog
from include.control import definitions
from include.errors import DeclarationError
from include.project.table_files import DRAFT
from tests.support.shop import TableProject, unload_package

NUMBERS = itertools.count()
LIVE = "remove its line '# draft' to make it live"


@pytest.fixture
def shop(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableProject]:
    """bronze.a <- silver.a, both live."""
    project = TableProject(tmp_path, monkeypatch, f"drafts_{next(NUMBERS)}")
    project.write_bronze("a")
    project.write_reader("silver.a", "bronze.a")
    yield project
    unload_package(project.package)


def write_draft(shop: TableProject, name: str, text: str, mark: str = DRAFT) -> str:
    """Write a table file with a draft mark. Returns the sentence about it."""
    shop.write(name, f"{mark}\n{text}")
    return f"{shop.package}/{name.replace('.', '/')}.py is a draft: {LIVE}"


@pytest.mark.parametrize("text", ["TABLE = Table(\n", "no Python at all\n", "1 / 0\n", ""])
def test_a_draft_declares_nothing_and_is_no_mistake_whatever_it_holds(shop: TableProject, text: str):
    sentence = write_draft(shop, "silver.new", text)
    loaded = shop.load()
    assert (list(loaded.tables), loaded.invalid) == (["bronze.a", "silver.a"], {})
    assert loaded.notices == catalog.draft_sentences() == [sentence]
    assert catalog.require(shop.package).tables.keys() == loaded.tables.keys()
    with pytest.raises(DeclarationError) as refusal:
        loaded.table("silver.new")
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    "mark",
    [
        DRAFT,
        "# draft",
        "#draft:",
        "# Draft: by hand",
        "\ufeff# draft",
        "#!/usr/bin/python\n\n# draft: x",
        "# Y\n# draft",
    ],
)
def test_the_mark_is_a_comment_above_all_else(shop: TableProject, mark: str):
    write_draft(shop, "silver.new", "TABLE = Table(\n", mark)
    assert "silver.new" in shop.load().drafts


@pytest.mark.parametrize(
    "first_lines",
    ["", "# drafted in May", "# draft horses: their rows", '"""\n# draft: no comment\n"""', "import os\n# draft"],
)
def test_any_other_file_is_live(shop: TableProject, first_lines: str):
    text = shop.write_reader("silver.new", "bronze.a")
    shop.write("silver.new", f"{first_lines}\n{text}")
    loaded = shop.load()
    assert "silver.new" in loaded.tables
    assert loaded.drafts == {}


def test_a_draft_is_live_from_the_moment_on_that_it_is_saved_without_its_mark(shop: TableProject):
    text = shop.write_reader("silver.new", "bronze.a")
    write_draft(shop, "silver.new", text)
    assert "silver.new" not in shop.load().drivers()["main"]
    versions = catalog.file_versions()
    shop.write("silver.new", text)
    # What a running driver compares every second.
    assert catalog.file_versions() != versions
    assert "silver.new" in [flow.flow for flow in shop.load().drivers()["main"]]


def test_a_live_table_that_reads_a_draft_is_refused_and_says_so(shop: TableProject):
    text = shop.write_reader("silver.new", "bronze.a")
    write_draft(shop, "silver.new", text)
    shop.write_reader("gold.new", "silver.new")
    sentence = f"{shop.package}/gold/new.py: source is 'silver.new', whose file is a draft: {LIVE}"
    assert shop.load().warnings == {
        "gold.new": f"{sentence} (there is no earlier definition, so nothing runs of gold.new)"
    }
    with pytest.raises(DeclarationError) as refusal:
        catalog.require(shop.package)
    assert refusal.value.sentences == (sentence,)
    shop.write("silver.new", text)
    assert "gold.new" in shop.load().tables


def test_a_table_that_becomes_a_draft_goes_on_with_its_last_good_definition(shop: TableProject, engine):
    """Also after the supervisor has stored definitions, which it does each minute, and a module has changed with it."""
    text, helper = shop.write_reader("silver.a", "bronze.a", "*COLUMNS"), shop.path("silver._columns")
    shop.write("silver.a", f"from {shop.package}.silver._columns import COLUMNS\n{text}")
    helper.write_text('COLUMNS = ["value"]\n')
    definitions.settle(engine, shop.load())
    shop.write_reader("gold.a", "silver.a")
    helper.write_text('COLUMNS = ["offset"]\n')
    sentence = write_draft(shop, "silver.a", "TABLE = Table(\n")
    for _ in range(2):
        loaded = shop.load()
        assert list(loaded.tables) == ["bronze.a", "silver.a", "gold.a"]
        assert (loaded.invalid, loaded.notices) == (
            {},
            [f"{sentence} (silver.a goes on with its last good definition)"],
        )
        assert loaded.table("silver.a").transform.__globals__["COLUMNS"] == ["value"]
        definitions.settle(engine, loaded)
    # A job that runs today's code has none.
    with pytest.raises(DeclarationError, match="is a draft"):
        loaded.current_definition("silver.a")


def test_a_draft_beside_a_live_file_of_the_same_table_leaves_that_as_it_is(
    shop: TableProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    examples = TableProject(tmp_path, monkeypatch, f"drafts_{next(NUMBERS)}")
    write_draft(examples, "silver.a", "TABLE = Table(\n")
    monkeypatch.setattr(catalog, "table_packages", lambda: (shop.package, examples.package))
    for text in (shop.path("silver.a").read_text(), "TABLE = Table(\n"):
        shop.write("silver.a", text)
        loaded = shop.load()
        catalog.store_definitions(loaded, loaded.tables)
        assert list(loaded.tables) == ["bronze.a", "silver.a"]
        assert loaded.drafts == {}
    unload_package(examples.package)


def test_a_check_of_drafts_names_a_wrong_one_and_passes_a_right_one_and_stores_neither(shop: TableProject, home: Path):
    text = shop.write_reader("silver.right", "silver.a")
    write_draft(shop, "silver.right", text)
    write_draft(shop, "silver.wrong", text.replace("silver.right", "silver.wrong").replace("Delta(", "Delt("))
    before = sorted(home.rglob("*"))
    tables, examination = catalog.examine(shop.package, with_drafts=True)
    assert list(tables.tables) == ["bronze.a", "silver.a", "silver.right"]
    [sentence] = examination.sentences
    assert sentence.startswith(f"{shop.package}/silver/wrong.py:")
    assert "'Delt' is not defined" in sentence
    assert sorted(home.rglob("*")) == before
    assert list(shop.load().tables) == ["bronze.a", "silver.a"]
    assert catalog.examine(shop.package)[1].sentences == []


def test_a_draft_beside_a_live_file_of_the_same_table_is_named_by_a_check_of_drafts(
    shop: TableProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = TableProject(tmp_path, monkeypatch, f"drafts_{next(NUMBERS)}")
    write_draft(other, "silver.a", shop.path("silver.a").read_text())
    try:
        _, examination = catalog.examine(shop.package, other.package, with_drafts=True)
        assert [sentence for sentence in examination.sentences if "declares silver.a, too: rename" in sentence]
    finally:
        unload_package(other.package)
