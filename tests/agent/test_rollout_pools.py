"""One attempt over pools that go down or are too small."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rollout_desk import (
    SUBMIT,
    TOKENIZER,
    WORK,
    Clock,
    Desk,
    Lines,
    Outcome,
    SayingEngine,
    TimedEngine,
    make,
    play,
    started,
)

from concur_batch.agent.services import Pool, Services
from concur_batch.control.member import State
from concur_batch.engine.protocol import ContextOverflow, EngineDown, PoolOverflow

pytestmark = pytest.mark.usefixtures("no_jitter")


# Pools that go down.


async def test_a_pool_that_goes_down_parks_the_agent_which_goes_on_where_the_next_permit_says() -> None:
    clock, desk, rows = Clock(), Desk(pools=("0", "1")), Lines()
    gone = TimedEngine(clock, WORK, EngineDown("refused"))
    well = TimedEngine(clock, WORK, SUBMIT)
    services = replace(
        make(gone, desk, rows), clock=clock, pools={"0": Pool(gone, None, 1, 8000), "1": Pool(well, 3, 16, 9000)}
    )
    ending, row = await started(services)[1]
    turns = rows.rows("turns")
    assert (ending.status, row["turns"], row["replica"]) == ("finished", 3, "1")
    assert [turn["replica"] for turn in turns] == ["0", "1", "1"]
    assert [(len(gone.requests), gone.requests[1].dp_rank), (len(well.requests), well.requests[0].dp_rank)] == [
        (2, None),
        (2, 3),
    ]
    # The same prompt again, under the same number; its delta is recorded once.
    assert gone.requests[1].input_ids.tolist() == well.requests[0].input_ids.tolist()
    assert gone.requests[1].rid == well.requests[0].rid == turns[1]["rid"]
    recorded = "".join(turn["input_delta_ids"] + turn["output_ids"] for turn in turns)
    assert np.frombuffer(bytes.fromhex(recorded), "<i4").tolist() == [
        *well.requests[1].input_ids.tolist(),
        *TOKENIZER.encode(SUBMIT + "<|im_end|>"),
    ]
    assert [turn["generation_seconds"] for turn in turns] == [2, 2, 2]
    assert [turn["paused_seconds"] for turn in turns] == [0, 2, 0]  # of which nothing came
    for turn in turns:
        parts = ("pending", "paused", "queue", "generation", "tool_queue", "tool")
        # The gate's waits are on another clock: next to nothing here.
        assert sum(turn[f"{part}_seconds"] for part in parts) == pytest.approx(
            turn["ended_seconds"] - turn["started_seconds"], abs=0.5
        )
    assert desk.admission.windows["0"].closed
    assert desk.is_free()


async def test_the_time_that_an_agent_is_parked_does_not_count_against_it() -> None:
    clock, desk, rows = Clock(), Desk(), Lines()
    engine = TimedEngine(clock, WORK, EngineDown("refused"), SUBMIT)
    services = replace(make(engine, desk, rows, active_seconds=60), clock=clock)
    rollout, running = started(services)
    await desk.until(State.PAUSED)
    assert (desk.admission.places_held, len(engine.requests)) == (0, 2)
    clock.seconds += 1000
    await asyncio.sleep(0.02)
    assert (len(engine.requests), rollout.standing()["state"]) == (2, "paused")
    desk.reopen("0")
    ending, row = await running
    assert (ending.status, row["turns"], row["pauses"]) == ("finished", 2, 1)
    assert (row["generation_seconds"], row["paused_seconds"]) == (4, 2 + 1000)
    assert desk.is_free()


async def test_pools_that_go_down_over_and_over_under_one_generation_fail_the_infrastructure() -> None:
    desk, rows, engine = Desk(), Lines(), SayingEngine(WORK, EngineDown("refused"))
    report = desk.report

    def believe(event: Any) -> None:
        report(event)
        asyncio.get_running_loop().call_soon(desk.reopen, "0")

    desk.gate._report = believe
    ending, row = await started(make(engine, desk, rows))[1]
    assert (ending.status, ending.failure_class) == ("failed", "infrastructure")
    assert "8 times" in (ending.error or "")
    assert (row["turns"], len(engine.requests), desk.admission.windows["0"].moves.paused) == (1, 1 + 8, 7)
    assert desk.is_free()


# Agents that are too large.


async def test_a_prompt_that_the_engine_says_does_not_fit_its_pool_ends_oversized() -> None:
    ending, row, *_ = await play(WORK, PoolOverflow("KV memory budget"))
    assert (ending.status, ending.reason, ending.failure_class, row["turns"]) == ("oversized", "pool", "limit", 1)


async def test_a_context_that_the_engine_says_is_full_is_a_limit_and_not_the_pools() -> None:
    ending, *_ = await play(ContextOverflow("too long"))
    assert (ending.status, ending.reason) == ("limit", "context")


def with_pool(tokens: int) -> Callable[[Services], Services]:
    return lambda services: replace(
        services, pools={name: replace(pool, tokens=tokens) for name, pool in services.pools.items()}
    )


async def test_a_history_that_fills_the_largest_pool_ends_oversized_without_asking_the_engine() -> None:
    _, _, _, engine = await play(SUBMIT)
    prompt_tokens = len(engine.requests[0].input_ids)
    desk, rows, engine = Desk(), Lines(), SayingEngine(WORK)
    ending, row = await started(with_pool(prompt_tokens)(make(engine, desk, rows)))[1]
    assert (ending.status, row["turns"], engine.requests) == ("oversized", 0, [])
    assert desk.state() is None  # it asked for no place either


async def test_an_output_that_the_pool_cuts_ends_oversized() -> None:
    _, _, _, engine = await play(SUBMIT)
    prompt_tokens = len(engine.requests[0].input_ids)
    ending, row, rows, engine = await play((WORK, "length"), adjust=with_pool(prompt_tokens + 9))
    assert (ending.status, ending.reason, row["turns"]) == ("oversized", "pool", 1)
    assert engine.requests[0].max_new_tokens == 9
    assert rows.rows("tools") == []


async def test_a_pool_of_unknown_size_bounds_nothing() -> None:
    ending, _, _, engine = await play(
        SUBMIT, adjust=lambda services: replace(services, pools={"0": Pool(services.pools["0"].engine, None, 1, None)})
    )
    assert (ending.status, engine.requests[0].max_new_tokens) == ("finished", 200)


# Pools of unequal size: "0" is too small at some time, "1" is not.


def unequal(desk: Desk, services: Services, small: SayingEngine, large: SayingEngine, tokens: int) -> Services:
    """Pool 0 holds so many tokens; the agent comes there first."""
    desk.admission.windows["0"].pool_tokens, desk.admission.windows["1"].pool_tokens = tokens, 8000
    desk.admission.windows["1"].capacity = 0
    return replace(services, pools={"0": Pool(small, None, 1, tokens), "1": Pool(large, None, 1, 8000)})


async def second_prompt_tokens() -> int:
    _, _, _, engine = await play(WORK, SUBMIT)
    return len(engine.requests[1].input_ids)


async def played(desk: Desk, services: Services) -> Outcome:
    """To the end; pool 1 has places from the agent's first generation on."""
    _, running = started(services)
    await desk.until(State.ACTIVE)
    desk.resize(1)
    outcome = await running
    assert desk.is_free()
    return outcome


async def test_an_agent_that_has_outgrown_its_pool_goes_on_in_a_larger_one() -> None:
    desk, rows, small, large = Desk(pools=("0", "1")), Lines(), SayingEngine(WORK), SayingEngine(SUBMIT)
    services = unequal(desk, make(small, desk, rows), small, large, await second_prompt_tokens())
    ending, row = await played(desk, services)
    assert (ending.status, row["turns"], row["pauses"]) == ("finished", 2, 1)
    assert [turn["replica"] for turn in rows.rows("turns")] == ["0", "1"]
    assert (len(small.requests), len(large.requests)) == (1, 1)  # nobody asked the small one in vain


async def test_a_prompt_that_the_engine_says_does_not_fit_its_pool_goes_to_a_larger_one() -> None:
    """Though by its size it would: engines keep some tokens for themselves."""
    desk, rows, large = Desk(pools=("0", "1")), Lines(), SayingEngine(SUBMIT)
    small = SayingEngine(WORK, PoolOverflow("KV memory budget"))
    services = unequal(desk, make(small, desk, rows), small, large, await second_prompt_tokens() + 3)
    ending, row = await played(desk, services)
    assert (ending.status, row["turns"], row["replica"]) == ("finished", 2, "1")
    assert (len(small.requests), len(large.requests)) == (2, 1)


async def test_an_output_that_a_small_pool_cuts_is_made_anew_in_a_larger_one() -> None:
    """The engine has worked for it, and its counters tell so: so must the requests' own account."""
    desk, rows = Desk(pools=("0", "1")), Lines()
    small, large = SayingEngine(WORK, ("<tool_call>", "length")), SayingEngine(SUBMIT)
    prompt_tokens = await second_prompt_tokens()
    spent: list[tuple[str, int]] = []
    services = replace(
        unequal(desk, make(small, desk, rows), small, large, prompt_tokens + 5),
        spend=lambda pool, of: spent.append((pool, of.input_tokens)),
    )
    ending, row = await played(desk, services)
    assert (ending.status, row["turns"], row["replica"]) == ("finished", 2, "1")
    assert small.requests[1].max_new_tokens == 5
    assert spent[1:] == [("0", prompt_tokens), ("1", prompt_tokens)]
    assert large.requests[0].input_ids.tolist() == small.requests[1].input_ids.tolist()
    assert [turn["action"] for turn in rows.rows("turns")] == ["calls", "calls"]


async def test_an_agent_whose_pool_stays_too_small_ends_oversized() -> None:
    """A controller that knows no sizes sends it back each time."""
    desk, rows, small = Desk(pools=("0", "1")), Lines(), SayingEngine(WORK, PoolOverflow("KV memory budget"))
    services = unequal(desk, make(small, desk, rows), small, small, await second_prompt_tokens() + 3)
    for window in desk.admission.windows.values():
        window.pool_tokens = None
    _, running = started(services)
    ending, row = await running
    assert (ending.status, ending.reason, row["turns"], len(small.requests)) == ("oversized", "pool", 1, 1 + 8)
    assert desk.is_free()
