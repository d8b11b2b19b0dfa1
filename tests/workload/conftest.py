"""An empty directory, which is also the current one, so that messages name short paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from workload_files import write_tasks

# Machines that test are busy: how long an example takes says nothing.
settings.register_profile("patient", deadline=None, max_examples=60)
settings.load_profile("patient")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory, with a tokenizer, a script and one task."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    (tmp_path / "s.jsonl").write_text("{}\n")
    write_tasks([{"id": "a", "question": "why?"}])
    return tmp_path
