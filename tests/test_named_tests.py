"""Every test that a page of the documentation names is there under that name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NAMED = re.compile(r"`(test_\w+)`")
_DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)


def test_the_tests_that_the_pages_name_exist() -> None:
    there = {name for path in (ROOT / "tests").rglob("test_*.py") for name in _DEFINED.findall(path.read_text())}
    named = {(page.name, name) for page in (ROOT / "docs").glob("*.md") for name in _NAMED.findall(page.read_text())}
    assert {(page, name) for page, name in named if name not in there} == set()


def test_each_public_bug_has_its_test() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    section = page.partition("## Public bugs and the tests that would catch them\n\n")[2]
    bugs = section.partition("\n\n")[0].splitlines()[2:]
    assert len(bugs) >= 9
    assert [bug for bug in bugs if not _NAMED.search(bug)] == []
