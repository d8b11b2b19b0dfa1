"""A whole trace on the real SGLang and on its model: one request after the other, so that both see the same order."""

from __future__ import annotations

import random

import aiohttp
import numpy as np

from concur_batch.engine.clients import connect
from concur_batch.engine.protocol import Generation, GenerationRequest
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.engine import EngineCore
from concur_batch.simulator.request import Completion, Request

AGENTS, TURNS = 10, 3
SHARED_TOKENS = 40
WORDS = range(1000, 20_000)  # of the vocabulary

Served = tuple[list[int], Generation]


async def serve_trace(url: str) -> tuple[list[Served], int, int]:
    """What interleaved agents ask and are answered, from an empty cache; pool size and tokens evicted meanwhile."""
    rng = random.Random(5)
    shared = rng.choices(WORDS, k=SHARED_TOKENS)
    histories = [[*shared, *rng.choices(WORDS, k=rng.randint(80, 160))] for _ in range(AGENTS)]
    order = [agent for agent in range(AGENTS) for _ in range(TURNS)]
    rng.shuffle(order)
    served: list[Served] = []
    client = connect("sglang", url, 60, 0)
    try:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/flush_cache?timeout=10") as answer:
            assert answer.status == 200
        before = (await client.read())[0]
        for number, agent in enumerate(order):
            prompt = histories[agent]
            sampling = {"temperature": 0.0, "ignore_eos": True}
            ids = np.array(prompt, dtype=np.int32)
            rid = f"trace-{number:04d}"
            generation = await client.generate(GenerationRequest(rid, ids, rng.randint(2, 3), 0, sampling))
            served.append((prompt, generation))
            observation = rng.choices(WORDS, k=rng.randint(100, 160))
            histories[agent] = [*prompt, *generation.output_ids, *observation]
        after = (await client.read())[0]
    finally:
        await client.close()
    assert after.pool_tokens is not None and after.evicted_tokens_total is not None
    return served, after.pool_tokens, after.evicted_tokens_total - (before.evicted_tokens_total or 0)


def simulate_trace(served: list[Served], pool_tokens: int) -> tuple[list[Completion], int]:
    """The same requests on the simulated engine, with the outputs that the real one gave; and what it evicts."""
    core = EngineCore(EngineConfig(pool_tokens=pool_tokens, context_tokens=8192), CostModel())
    completions = []
    for prompt, generation in served:
        said = np.array(generation.output_ids, dtype=np.int32)
        core.submit(Request("r", np.array(prompt, dtype=np.int32), said, len(said), True), core.now_seconds)
        completions += core.advance(float("inf"))
    return completions, core.counters().evicted


async def test_a_trace_finds_the_same_in_the_cache_as_on_the_real_sglang(real_sglang: str) -> None:
    served, pool_tokens, evicted_tokens = await serve_trace(real_sglang)
    completions, simulated_evicted_tokens = simulate_trace(served, pool_tokens)
    real = [generation.cached_device_tokens for _, generation in served]
    assert [completion.cached_tokens for completion in completions] == real
    assert simulated_evicted_tokens == evicted_tokens
    # The trace is hard enough: later turns hit their history, and some of it is gone.
    assert evicted_tokens > 1000
    assert sum(tokens > SHARED_TOKENS for tokens in real if tokens is not None) >= AGENTS
    assert sum(tokens <= SHARED_TOKENS for tokens in real[AGENTS:] if tokens is not None) >= 3
