"""An empty directory, which is also the current one, so that messages name short paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from workload_files import write_tasks


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory, with a tokenizer and one task."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    write_tasks([{"id": "a", "question": "why?"}])
    return tmp_path
