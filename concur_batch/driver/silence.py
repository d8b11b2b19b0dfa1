"""Which parts of a run have hung: they live, and do not answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping

SILENT_SECONDS = 120.0
"""Ours: no part is so late, or takes so long to start again, on a machine that has far too much to do."""


class Silence:
    """How long each part has been waited for in vain, since its last answer.

    Only time in which somebody waited counts: a run that was stopped itself (Ctrl-Z) has not been waiting.
    """

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._seconds: dict[str, float] = {}

    def hung(self, answered: Mapping[str, bool], waited_seconds: float) -> list[str]:
        """Take note of who has answered a question that all of them were given so long for; those who have been silent
        for too long, each once: one that starts again has its time anew."""
        silent = {name: self._seconds.get(name, 0.0) + waited_seconds for name, told in answered.items() if not told}
        found = [name for name, seconds in silent.items() if seconds >= self._most_seconds]
        self._seconds = {name: seconds for name, seconds in silent.items() if name not in found}
        return found
