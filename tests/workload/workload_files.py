"""Writes small workloads and task files into the current directory."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from concur_batch.workload.errors import InputError
from concur_batch.workload.loading import Loaded, load, load_tasks
from concur_batch.workload.tasks import Task

WORKLOAD = """\
name: demo
tasks:
  file: tasks.jsonl
  prompt: "{{ question }}"
model:
  name: m
  tokenizer: tokenizer
engine:
  kind: simulated
  script: s.jsonl
"""


def write_tasks(rows: list[dict[str, Any]], name: str = "tasks.jsonl") -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_workload(text: str = WORKLOAD, *more: str) -> Path:
    """Write w.yaml: a text, and blocks after it."""
    path = Path("w.yaml")
    path.write_text(text + "".join(textwrap.dedent(block) for block in more))
    return path


def loaded(*more: str, overrides: tuple[str, ...] = ()) -> Loaded:
    return load(write_workload(WORKLOAD, *more), overrides)


def tasks_of(*more: str, overrides: tuple[str, ...] = ()) -> list[Task]:
    return load_tasks(loaded(*more, overrides=overrides))


def complaints(act: Callable[[], object]) -> list[str]:
    """The lines of the InputError that `act` raises."""
    with pytest.raises(InputError) as caught:
        act()
    return str(caught.value).splitlines()
