"""A crowd passes the turnstile in order, a few in each turn of the loop, and others run in between."""

import asyncio
import itertools
import time

from concur_batch.agent.turnstile import Turnstile


async def test_a_crowd_passes_in_order_and_leaves_turns_to_others() -> None:
    turnstile, passed, between = Turnstile(), [], []

    async def agent(number: int) -> None:
        await turnstile.enter()
        passed.append(number)

    async def other() -> None:
        while len(passed) < 100:
            between.append(len(passed))
            await asyncio.sleep(0)

    await asyncio.gather(other(), *(agent(number) for number in range(100)))
    assert passed == list(range(100))
    steps = [after - before for before, after in itertools.pairwise(between)]
    assert max(steps) <= 8
    assert len(between) >= 12


async def test_a_cancelled_agent_leaves_its_place_to_the_next() -> None:
    turnstile, passed = Turnstile(), []

    async def agent(number: int) -> None:
        await turnstile.enter()
        passed.append(number)

    agents = [asyncio.create_task(agent(number)) for number in range(30)]
    await asyncio.sleep(0)
    for number in (10, 11, 20):
        agents[number].cancel()
    await asyncio.gather(*agents, return_exceptions=True)
    assert passed == [number for number in range(30) if number not in (10, 11, 20)]


async def test_it_rests_when_nobody_comes() -> None:
    turnstile = Turnstile()
    for _ in range(3):
        await asyncio.wait_for(turnstile.enter(), 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not turnstile._scheduled


async def test_agents_that_take_long_pass_one_by_one() -> None:
    """Eight agents of 20 ms in one turn of the loop would keep all else waiting for 160 ms."""
    turnstile, passed, between = Turnstile(), [], []

    async def agent(number: int) -> None:
        await turnstile.enter()
        time.sleep(0.02)  # noqa: ASYNC251
        passed.append(number)

    async def other() -> None:
        while len(passed) < 30:
            between.append(len(passed))
            await asyncio.sleep(0)

    await asyncio.gather(other(), *(agent(number) for number in range(30)))
    steps = [after - before for before, after in itertools.pairwise(between)]
    assert max(steps[-15:]) == 1
