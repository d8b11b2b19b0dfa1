"""Recorders at the end of a run, as their driver sees them. They run without Ray here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from concur_batch.driver.recorders import Recorders


class Actor:
    """Whether it closes, and answers meanwhile, is up to the test."""

    def __init__(self, close: Callable[[], Awaitable[None]], totals: Callable[[], Awaitable[Any]]) -> None:
        self.close = SimpleNamespace(remote=close)
        self.totals = SimpleNamespace(remote=totals)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Actor]:
    found: list[Actor] = []
    monkeypatch.setattr("concur_batch.driver.recorders.ray.kill", found.append)
    monkeypatch.setattr("concur_batch.driver.recorders._PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("concur_batch.driver.recorders._CLOSE_SILENCE_SECONDS", 0.1)
    return found


async def closed(actor: Actor) -> None:
    recorders = Recorders(None, Path(), None)  # type: ignore[arg-type]
    recorders._actors = {"node": actor}
    await recorders.close()


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_recorder_that_stores_for_long_and_answers_is_waited_for_at_the_end(killed: list[Actor]) -> None:
    stored = asyncio.Event()
    asked = 0

    async def close() -> None:
        await stored.wait()

    async def totals() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        assert not killed
        if asked == 20:
            stored.set()
        return {}

    actor = Actor(close, totals)
    await closed(actor)
    assert (killed, asked) == ([actor], 20)


async def test_a_recorder_that_has_hung_is_not_waited_for_at_the_end(killed: list[Actor]) -> None:
    actor = Actor(never, never)
    await closed(actor)
    assert killed == [actor]
