"""The threat model names a test for each defence, and these tests exist."""

import ast
import re

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "concepts" / "threat-model.md"


def defences() -> list[list[str]]:
    """The rows of the table of defences: against what, by what, and the proofs."""
    section = PAGE.read_text().partition("## Defences")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    # Without the heads of the columns, and the line below them.
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_each_defence_names_its_proof_and_each_proof_is_a_file_of_tests():
    assert len(defences()) > 15
    for _, defence, proof in defences():
        files = re.findall(r"`(tests/[^`]+)`", proof)
        assert files, defence
        for file in files:
            tree = ast.parse((ROOT / file).read_text())
            functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            assert any(name.startswith("test_") for name in functions), file


def test_it_says_what_is_not_defended():
    section = PAGE.read_text().partition("## What is not defended")[2]
    assert section.count("\n- **") >= 5
