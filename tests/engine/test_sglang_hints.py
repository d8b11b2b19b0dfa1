"""Priorities and sessions on a real SGLang on the CPU: one request at a time, from a pool of 1,024 tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import numpy as np
import pytest

from concur_batch.engine.protocol import GenerationRequest, RequestRejected
from concur_batch.engine.sglang import SglangEngine
from tests.servers import real_server, serving

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
PROMPT_TOKENS = 200


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("hints")
    yield from serving(
        real_server(
            "sglang", directory, "--max-running-requests=1", "--max-total-tokens=1024", priorities=True, sessions=True
        )
    )


@pytest.fixture
async def engine(url: str) -> AsyncIterator[SglangEngine]:
    engine = SglangEngine(url, 120, 0)
    yield engine
    await engine.close()


def request(number: int, length: int, tokens: int) -> GenerationRequest:
    """A prompt of its own, whose output has exactly so many tokens."""
    prompt = np.full(length, 1000 + number, dtype=np.int32)
    return GenerationRequest(f"hint{number:04d}", prompt, tokens, 0, {"temperature": 0, "ignore_eos": True})


async def test_a_high_priority_overtakes_low_ones_that_wait(engine: SglangEngine) -> None:
    ended: list[str] = []

    async def ask(name: str, number: int, tokens: int, priority: int) -> None:
        await engine.generate(replace(request(number, 20, tokens), priority=priority))
        ended.append(name)

    async def until(running: int, waiting: int) -> None:
        async with asyncio.timeout(60):
            while True:
                reading = (await engine.read())[0]
                if (reading.running_requests, reading.waiting_requests) == (running, waiting):
                    return
                await asyncio.sleep(0.05)

    asking = [asyncio.create_task(ask("running", 0, 60, 0))]
    await until(1, 0)
    for number in range(3):
        asking.append(asyncio.create_task(ask(f"low{number}", number + 1, 2, 0)))
        await until(1, number + 1)
    # Not so much higher that it would push out what runs (by more than 10).
    asking.append(asyncio.create_task(ask("high", 9, 2, 5)))
    await asyncio.gather(*asking)
    assert ended == ["running", "high", "low0", "low1", "low2"]


async def test_the_field_of_a_priority_is_read(engine: SglangEngine) -> None:
    """An unknown field would be passed over."""
    with pytest.raises(RequestRejected, match="signed 64-bit"):
        await engine.generate(replace(request(20, 20, 1), priority=2**63))


async def test_a_sessions_prefix_outlives_later_ones_until_it_is_closed(engine: SglangEngine) -> None:
    async def cached(number: int, session: str | None = None) -> int:
        generation = await engine.generate(replace(request(number, PROMPT_TOKENS, 1), session=session))
        return generation.cached_device_tokens

    assert await cached(30, "agent") == 0
    assert await cached(31) == 0
    for number in range(32, 37):  # 1,000 tokens: the pool cannot hold what came before as well
        await cached(number)
    assert await cached(30, "agent") == PROMPT_TOKENS - 1
    assert await cached(31) == 0
    await engine.end_session("agent")
    for number in range(37, 43):
        await cached(number)
    assert await cached(30) == 0
