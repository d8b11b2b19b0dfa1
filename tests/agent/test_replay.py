"""One agent that is replayed: the engine is asked for just as many tokens, and nothing it says decides anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from rollout_desk import SPEC, TOKENIZER, Desk, Lines, SayingEngine, configured, make

from concur_batch.agent.rollout import Rollout
from concur_batch.agent.spec import Ending
from concur_batch.agent.trajectory import Exchange, Step, Trajectory
from concur_batch.engine.protocol import Generation, GenerationRequest
from concur_batch.workload.schema import Sampling
from tools_env.spec import ToolResult


def ids(*numbers: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(numbers, dtype=np.int32)


STEPS = (
    Step(ids(10, 11, 12), 4, (Exchange("bash", {"command": "ls"}, ToolResult("error", "no", 0.01, exit_code=2)),)),
    Step(
        ids(20, 21), 2, (Exchange("work", {}, ToolResult("ok", "a", 0.0)), Exchange("work", {}, ToolResult("ok", "b")))
    ),
    Step(ids(30), 3),
)
ENDING = Ending("limit", "turns", "limit", "3 turns", "an answer")


class ForcedEngine(SayingEngine):
    """Makes as many tokens as it is asked for, `short` less; each of them an end-of-turn, as a model may sample."""

    short = 0

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(replace(request, input_ids=request.input_ids.copy()))
        made = [*TOKENIZER.closing_ids[:1]] * (request.max_new_tokens - self.short)
        return Generation(made, "length", len(request.input_ids), 0)


async def replayed(steps: tuple[Step, ...] = STEPS, short: int = 0, **changes: Any) -> Any:
    desk, rows, engine = Desk(), Lines(), ForcedEngine("unused")
    engine.short = short
    services = configured(make(engine, desk, rows), sampling=Sampling(max_tokens=1, stop=["x"]), **changes)
    spec = replace(SPEC, check=None, trajectory=Trajectory(steps, ENDING))
    ending, row = await Rollout(spec, services).run()
    assert desk.is_free()
    return ending, row, rows, engine.requests


async def test_lengths_observations_and_calls_are_the_recorded_ones() -> None:
    ending, row, rows, requests = await replayed()
    (end,) = TOKENIZER.closing_ids[:1]
    assert ending == ENDING
    assert row["prompt"] is None
    assert [request.max_new_tokens for request in requests] == [4, 2, 3]
    assert [request.sampling["ignore_eos"] for request in requests] == [True] * 3
    assert all("stop" not in request.sampling for request in requests)
    assert requests[2].input_ids.tolist() == [10, 11, 12, *[end] * 4, 20, 21, *[end] * 2, 30]
    assert [(turn["input_tokens"], turn["output_tokens"]) for turn in rows.rows("turns")] == [(3, 4), (9, 2), (12, 3)]
    calls = [
        (call["turn"], call["name"], orjson.loads(call["arguments"]), call["status"], call["output"], call["exit_code"])
        for call in rows.rows("tools")
    ]
    assert calls == [
        (0, "bash", {"command": "ls"}, "error", "no", 2),
        (1, "work", {}, "ok", "a", None),
        (1, "work", {}, "ok", "b", None),
    ]
    assert (row["status"], row["answer"], row["turns"], row["tool_calls"]) == ("limit", "an answer", 3, 3)
    assert row["tool_seconds"] >= 0.01


async def test_a_pool_without_room_ends_it_there() -> None:
    ending, row, rows, requests = await replayed(context_tokens=10)
    assert (ending.status, ending.reason) == ("limit", "context")
    assert [request.max_new_tokens for request in requests] == [4, 1]
    assert row["turns"] == 2
    assert rows.rows("turns")[1]["action"] == "truncated"


async def test_an_engine_that_does_not_take_a_forced_length_fails_it() -> None:
    ending, _, rows, _ = await replayed(short=1)
    assert (ending.status, ending.failure_class) == ("failed", "infrastructure")
    assert ending.error == "the engine made 3 tokens where 4 were due: it does not take a forced length"
    assert rows.rows("turns") == []
