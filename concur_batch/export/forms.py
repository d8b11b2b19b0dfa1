"""The formats by name, and how each is made for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from concur_batch.export.form import Form
from concur_batch.trace.reading import Run

Rewritten = Literal["split", "drop"]
"""What becomes of a trajectory whose history was rewritten."""
REWRITTEN: tuple[Rewritten, ...] = get_args(Rewritten)


class NoForm(Exception):
    """A run cannot be exported in a format. One line: why, and how to mend it."""


FORMS: Mapping[str, Callable[[Run, Rewritten], Form]] = {}
