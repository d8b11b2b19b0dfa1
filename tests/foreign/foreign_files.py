"""Trajectories of other programs, as files of this repository, and as this project reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from concur_batch.foreign.documents import Document, read_file
from concur_batch.foreign.formats import documents, read
from concur_batch.foreign.trajectory import Trajectory, Turn

ROOT = Path(__file__).parents[2]
FILES = ROOT / "tests" / "fixtures" / "foreign"
DEMO = ROOT / "workloads" / "demo_model"


def trajectories(name: str) -> list[Trajectory]:
    """All in a file that is right throughout."""
    found = list(read_file(FILES / name))
    assert all(isinstance(each, Document) for each in found)
    return [read(part, each.name) for each in found if isinstance(each, Document) for part in documents(each.value)]


def content(name: str) -> Any:
    return orjson.loads((FILES / name).read_bytes())


def seconds(turns: tuple[Turn, ...]) -> list[list[float | None]]:
    return [[call.seconds for call in turn.calls] for turn in turns]


def chat(*messages: tuple[str, str], **fields: Any) -> dict[str, Any]:
    """An object of `messages`, by role and content."""
    return {"messages": [{"role": role, "content": content} for role, content in messages], **fields}
