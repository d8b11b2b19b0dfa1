"""Tools without a sandbox: seeded waits and seeded words, for load tests and benchmarks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools_env.catalogue import SUBMIT
from tools_env.spec import ToolResult, ToolSpec, argument_error

_WORK = ToolSpec(
    "work",
    "Do one step of work and report what was found.",
    {
        "type": "object",
        "properties": {"step": {"type": "integer", "description": "Number of the step."}},
        "required": ["step"],
        "additionalProperties": False,
    },
    has_effects=False,
)

_WORDS = """
    the of and to in is that for it was on are as with be at this from have or by one had not but what all were when we
    there can an your which their if do will each about how up out them then she many some so these would other into has
    more two like see time could no make than first been its who now people my made over did down only way find use may
    water long little very after words called just where most know
""".split()  # noqa: SIM905 - a paragraph reads better than a hundred quoted words


class SyntheticEnvironment:
    """An environment of two tools, `work` and `submit`, run in this process.

    A call of `work` waits a log-uniform time of `wait_seconds` = (low, high) and returns a uniform number of words of
    `observation_words` = (low, high). Both depend on `seed`, the session's key and the index of the call in its
    session alone, so a run can be repeated whatever order its agents run in.

    Raises:
        ValueError: a range is empty, negative, or a wait starts at zero without ending there.
    """

    def __init__(self, wait_seconds: tuple[float, float], observation_words: tuple[int, int], seed: int) -> None:
        low, high = wait_seconds
        if not (0 < low <= high or low == high == 0):
            raise ValueError(f"wait_seconds must be 0 < low <= high, or (0, 0) for none, not {wait_seconds}")
        if not 0 <= observation_words[0] <= observation_words[1]:
            raise ValueError(f"observation_words must be 0 <= low <= high, not {observation_words}")
        self._wait_seconds = wait_seconds
        self._observation_words = observation_words
        self._seed = seed

    def specs(self) -> list[ToolSpec]:
        return [_WORK, SUBMIT]

    async def open(self, key: str, files: Mapping[str, str], mark: str | None = None) -> SyntheticSession:
        """A session. There is no workspace, so `files` is not looked at; the mark is the number of its calls."""
        calls = 0 if mark is None else int(mark)
        return SyntheticSession(f"{self._seed}/{key}", self._wait_seconds, self._observation_words, calls)

    async def forget(self, key: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is held."""


class SyntheticSession:
    """One agent's seeded stream of waits and words."""

    workspace: Path | None = None

    def __init__(
        self, stream: str, wait_seconds: tuple[float, float], observation_words: tuple[int, int], calls: int
    ) -> None:
        self._stream = stream
        self._wait_seconds = wait_seconds
        self._observation_words = observation_words
        self._calls = calls

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        spec = {"work": _WORK, "submit": SUBMIT}.get(name)
        if spec is None:
            return _result("error", f"there is no tool {name!r:.80}; the tools are: work, submit")
        if problem := argument_error(spec, arguments):
            return _result("error", problem)
        if spec is SUBMIT:
            return ToolResult("ok", "submitted", answer=arguments["answer"], output_bytes=len("submitted"))
        return await self._work()

    async def _work(self) -> ToolResult:
        seeded = random.Random(f"{self._stream}/{self._calls}")
        self._calls += 1
        wait = seeded.random()
        words = seeded.choices(_WORDS, k=seeded.randint(*self._observation_words))
        low, high = self._wait_seconds
        started = time.monotonic()
        if high:
            await asyncio.sleep(low * (high / low) ** wait)
        return _result("ok", " ".join(words), time.monotonic() - started)

    async def save(self, recorded: str) -> str:
        return str(self._calls)

    async def close(self, keep: bool = False) -> None:
        """Nothing is held."""


def _result(status: Any, output: str, seconds: float = 0.0) -> ToolResult:
    return ToolResult(status, output, seconds, output_bytes=len(output.encode()))
