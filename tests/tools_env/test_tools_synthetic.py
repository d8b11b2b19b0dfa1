from __future__ import annotations

import asyncio

import pytest

from tools_env.synthetic import SyntheticEnvironment


async def observations(key: str, seed: int, calls: int = 5) -> list[str]:
    session = await SyntheticEnvironment((0, 0), (3, 9), seed).open(key, {})
    return [(await session.call("work", {"step": step})).output for step in range(calls)]


async def test_words_depend_on_seed_key_and_index_alone() -> None:
    first = await observations("a", 1)
    assert await observations("a", 1) == first
    assert await observations("b", 1) != first
    assert await observations("a", 2) != first
    assert len(set(first)) == len(first)
    assert all(3 <= len(text.split()) <= 9 for text in first)


async def test_waits_are_seeded_and_in_range(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def record(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", record)
    for _ in range(2):
        session = await SyntheticEnvironment((0.1, 10.0), (1, 1), 7).open("a", {})
        for step in range(200):
            await session.call("work", {"step": step})
    assert waits[:200] == waits[200:]
    assert all(0.1 <= wait <= 10.0 for wait in waits)
    assert 60 < sum(wait < 1.0 for wait in waits[:200]) < 140, "log-uniform: about half lies below 1 s"


async def test_no_wait_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forbidden(seconds: float) -> None:
        raise AssertionError("slept")

    session = await SyntheticEnvironment((0, 0), (1, 1), 7).open("a", {})
    monkeypatch.setattr(asyncio, "sleep", forbidden)
    assert (await session.call("work", {"step": 0})).status == "ok"


async def test_submit_and_mistakes() -> None:
    session = await SyntheticEnvironment((0, 0), (1, 1), 7).open("a", {})
    assert (await session.call("submit", {"answer": "42"})).answer == "42"
    assert (await session.call("work", {"step": "one"})).status == "error"
    assert (await session.call("bash", {"command": "ls"})).status == "error"


@pytest.mark.parametrize(("wait", "words"), [((0, 1), (1, 1)), ((2, 1), (1, 1)), ((0, 0), (2, 1)), ((0, 0), (-1, 1))])
def test_bad_ranges_are_refused(wait: tuple[float, float], words: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        SyntheticEnvironment(wait, words, 1)
