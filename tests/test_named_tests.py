"""Every test that a page of the documentation names is there under that name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NAMED = re.compile(r"`(test_\w+)`")


def all_tests() -> set[str]:
    return {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_tests_that_the_pages_name_exist() -> None:
    named = {page.name: set(_NAMED.findall(page.read_text())) for page in (ROOT / "docs").glob("*.md")}
    missing = {page: sorted(names - all_tests()) for page, names in named.items() if not names <= all_tests()}
    assert not missing


def test_each_public_bug_has_its_test() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    section = page.partition("## Public bugs and the tests that would catch them\n")[2].partition("\n## ")[0]
    bugs = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(bugs) >= 9
    assert [line for line in bugs if not _NAMED.search(line)] == []
