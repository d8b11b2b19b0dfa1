"""A traceback is told from what Python says of itself."""

from __future__ import annotations

import pytest

from concur_batch.bench.chaos.stderr import has_traceback

OURS = 'Traceback (most recent call last):\n  File "run.py", line 1, in <module>\nValueError: 1\n'
UNBORN = f"Fatal Python error: init_import_site: Failed to import the site module\n{OURS}"
SWALLOWED = f"Exception ignored in: <function _releaseLock at 0x7f>\n{OURS}"


@pytest.mark.parametrize("text", ["", "concur: no such file\n", UNBORN, SWALLOWED, SWALLOWED + UNBORN])
def test_what_python_says_of_itself_is_none(text: str) -> None:
    assert not has_traceback(text)


@pytest.mark.parametrize("text", [OURS, "concur: stopped\n" + OURS, SWALLOWED + OURS, OURS + UNBORN])
def test_an_exception_that_came_through_is_one(text: str) -> None:
    assert has_traceback(text)
