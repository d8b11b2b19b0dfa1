"""peers.md section 3 row 17: histories that were tokenized anew each turn, on the event loop, stalled a whole host."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from rollout_desk import SPEC, Desk, Lines, SayingEngine, make

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.host import favour_event_loop
from concur_batch.agent.rollout import Rollout
from concur_batch.agent.services import Pool
from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.bench.load import DEMO_MODEL, mock_server
from concur_batch.engine.sglang import SglangEngine

AGENTS, TURNS = 1000, 3
WORDS = 60_000


async def test_a_thousand_histories_of_sixty_thousand_tokens_do_not_stall_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000 agents, each turn over real HTTP; the loop wakes a sleeper within 100 ms, 19 times of 20. What is
    tokenized after the first prompt is what is new in each turn, however long the history."""
    encoded: list[int] = []
    encode = Tokenizer.encode

    def counted(self: Tokenizer, text: str) -> list[int]:
        encoded.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    favour_event_loop()
    desk, lines, lags = Desk(capacity=AGENTS), Lines(), []
    prompt = "and so on " * (WORDS // 3)
    with mock_server(TURNS, "work", {"step": 1}) as url:
        client = SglangEngine(url, 60, 0)
        services = make(SayingEngine("unused"), desk, lines, context_tokens=100_000)
        # Its own tokenizer: what prompts have in common is learned from all that were encoded before.
        services = replace(services, pools={"0": Pool(client, None, 1, None)}, tokenizer=load_tokenizer(DEMO_MODEL))
        rollouts = [
            Rollout(replace(SPEC, agent_id=f"t/{number}", sample=number, prompt=prompt), services)
            for number in range(AGENTS)
        ]

        async def probe() -> None:
            while True:
                began = time.monotonic()
                await asyncio.sleep(0.01)
                lags.append(time.monotonic() - began - 0.01)

        probing = asyncio.create_task(probe())
        endings = await asyncio.gather(*(rollout.run() for rollout in rollouts))
        probing.cancel()
        await client.close()
    assert {(ending.status, ending.reason) for ending, _ in endings} == {("finished", "submit")}
    rows = [row for _, row in endings]
    assert {row["turns"] for row in rows} == {TURNS}
    assert min(row["context_tokens"] for row in rows) > WORDS
    assert sorted(lags)[int(len(lags) * 0.95)] < 0.1
    whole = [length for length in encoded if length >= len(prompt)]
    assert len(whole) == 1  # all agents' prompts are alike
    assert max(length for length in encoded if length < len(prompt)) < 1000
