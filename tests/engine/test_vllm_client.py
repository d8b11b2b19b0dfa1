"""The client against a server that says what a real vLLM was seen to say, and that misbehaves in every way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineDown,
    EngineError,
    Generation,
    GenerationRequest,
    PoolOverflow,
    RequestRejected,
)
from concur_batch.engine.vllm import VllmEngine

FIXTURES = Path(__file__).parents[1] / "fixtures" / "vllm"
ANSWER = json.loads((FIXTURES / "completion.json").read_text())
ERRORS = json.loads((FIXTURES / "errors.json").read_text())
METRICS = (FIXTURES / "metrics_idle.txt").read_text()
SAMPLING = {"temperature": 0.5, "top_k": -1, "stop": ["Observation:"], "min_tokens": 6, "ignore_eos": True}
REQUEST = GenerationRequest("r" * 16, np.arange(100, 400, dtype=np.int32), 6, 1, SAMPLING)
Reply = Callable[[], Awaitable[web.StreamResponse]]


class Vllm:
    """Answers completions with the replies it is given, one after the other, and notes what it was sent."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.bodies: list[dict[str, Any]] = []
        self.ranks: list[str | None] = []
        self.dropped = 0
        self.is_healthy = True
        self.metrics = METRICS
        self.metrics_at_first = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/health", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.tell)
        # As vLLM: a closed connection cancels what is done for it.
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.ranks.append(request.headers.get("X-data-parallel-rank"))
        try:
            return await self.replies.pop(0)()
        except asyncio.CancelledError:
            self.dropped += 1
            raise

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})

    async def tell(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics if self.bodies else self.metrics_at_first or self.metrics)


async def reply_json(answer: Any, status: int = 200) -> web.Response:
    return web.json_response(answer, status=status)


def answers(answer: Any, status: int = 200) -> Reply:
    return lambda: reply_json(answer, status)


def with_choice(**fields: Any) -> dict[str, Any]:
    return ANSWER | {"choices": [ANSWER["choices"][0] | fields]}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ANSWER.items() if name != key}


async def hangs() -> web.Response:
    await asyncio.sleep(60)
    raise AssertionError


good = answers(ANSWER)
boom = answers(None, 500)


@pytest.fixture
async def vllm(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Vllm]:
    monkeypatch.setattr("concur_batch.engine.http.random.uniform", lambda low, high: 0.0)
    vllm = Vllm()
    await vllm.start()
    yield vllm
    await vllm.runner.cleanup()


async def ask(
    vllm: Vllm, *replies: Reply, request: GenerationRequest = REQUEST, seconds: float = 5, retries: int = 2
) -> Generation:
    vllm.replies = list(replies)
    engine = VllmEngine(vllm.url, seconds, retries)
    try:
        return await engine.generate(request)
    finally:
        await engine.close()


async def until_asked(vllm: Vllm) -> None:
    while not vllm.bodies:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_an_answer(vllm: Vllm) -> None:
    generation = await ask(vllm, good, request=replace(REQUEST, logprobs=True))
    assert (generation.output_ids, generation.finish_reason) == ([99, 216, 33, 33, 33, 33], "length")
    assert (generation.input_tokens, generation.cached_device_tokens, generation.attempts) == (300, 288, 1)
    assert generation.logprobs is not None and [round(value) for value in generation.logprobs] == [
        -3,
        -3,
        -2,
        -3,
        -2,
        -1,
    ]
    assert generation.queue_seconds == pytest.approx(0.0000202, abs=1e-7)
    assert generation.prefill_seconds == pytest.approx(0.0432, abs=1e-4)
    assert generation.decode_seconds == pytest.approx(0.1598, abs=1e-4)


async def test_what_is_sent(vllm: Vllm) -> None:
    await ask(vllm, good)
    (body,) = vllm.bodies
    assert body.pop("request_id").startswith(REQUEST.rid)
    assert body == {
        **SAMPLING, "prompt": list(range(100, 400)), "max_tokens": 6, "seed": 1, "return_token_ids": True,
    }  # fmt: skip


@pytest.mark.parametrize(("reason", "told"), [("stop", "stop"), ("length", "length"), ("repetition", "stop")])
async def test_how_it_ended(vllm: Vllm, reason: str, told: str) -> None:
    generation = await ask(vllm, answers(with_choice(finish_reason=reason, logprobs=None)))
    assert (generation.finish_reason, generation.logprobs) == (told, None)


async def test_a_server_that_tells_no_times(vllm: Vllm) -> None:
    generation = await ask(vllm, answers(without("metrics")))
    assert (generation.queue_seconds, generation.prefill_seconds, generation.decode_seconds) == (None, None, None)


@pytest.mark.parametrize(
    "fault",
    [
        boom,
        answers("slow", 429),
        answers({}),
        answers([]),
        answers(without("usage")),
        answers(ANSWER | {"choices": []}),
        answers(with_choice(token_ids=None)),
        answers(with_choice(finish_reason="abort")),
    ],
)
async def test_a_fault_is_tried_again_under_a_rid_of_its_own(vllm: Vllm, fault: Reply) -> None:
    assert (await ask(vllm, fault, good)).attempts == 2
    first, second = (body["request_id"] for body in vllm.bodies)
    assert first != second and len(first) == len(second)


async def test_tries_end(vllm: Vllm) -> None:
    with pytest.raises(EngineError, match=r"HTTP 500.*3 tries"):
        await ask(vllm, *[boom] * 3)


@pytest.mark.parametrize("name", ["context", "context_full"])
async def test_an_overflow_is_the_agents_limit(vllm: Vllm, name: str) -> None:
    with pytest.raises(ContextOverflow) as caught:
        await ask(vllm, answers(ERRORS[name], 400))
    assert str(caught.value) == ERRORS[name]["error"]["message"]
    assert not isinstance(caught.value, PoolOverflow)
    assert len(vllm.bodies) == 1


@pytest.mark.parametrize("name", ["temperature", "rank"])
async def test_what_is_refused_is_not_sent_again(vllm: Vllm, name: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        await ask(vllm, answers(ERRORS[name], 400))
    assert str(caught.value) == f"HTTP 400: {ERRORS[name]['error']['message']}"
    assert not isinstance(caught.value, ContextOverflow)
    assert len(vllm.bodies) == 1


async def test_a_timeout_closes_the_connection_and_is_tried_again(vllm: Vllm) -> None:
    assert (await ask(vllm, hangs, good, seconds=0.3)).attempts == 2
    assert vllm.dropped == 1


async def test_a_cancelled_call_closes_the_connection(vllm: Vllm) -> None:
    vllm.replies = [hangs]
    engine = VllmEngine(vllm.url, 60, 2)
    asking = asyncio.create_task(engine.generate(REQUEST))
    await until_asked(vllm)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    while not vllm.dropped:  # noqa: ASYNC110  # the engine is still open: it is the call that closes
        await asyncio.sleep(0.01)
    await engine.close()


@pytest.mark.parametrize("fault", [boom, answers("bad gateway", 502), hangs])
async def test_a_server_that_is_not_healthy_is_down_and_not_waited_for(vllm: Vllm, fault: Reply) -> None:
    vllm.is_healthy = False
    with pytest.raises(EngineDown):
        await ask(vllm, fault, seconds=0.3, retries=5)
    assert len(vllm.bodies) == 1


async def test_a_server_that_is_not_there_is_down(vllm: Vllm) -> None:
    await vllm.runner.cleanup()
    with pytest.raises(EngineDown):
        await ask(vllm)


async def test_a_server_that_dies_under_a_generation_is_down(vllm: Vllm) -> None:
    asking = asyncio.create_task(ask(vllm, hangs))
    await until_asked(vllm)
    await vllm.runner.cleanup()
    with pytest.raises(EngineDown):
        await asking


@pytest.mark.parametrize("healthy", [True, False])
async def test_hanging_up_breaks_off_what_waits_and_nothing_else(vllm: Vllm, healthy: bool) -> None:
    vllm.replies = [hangs, good]
    engine = VllmEngine(vllm.url, 60, 1)
    asking = asyncio.create_task(engine.generate(REQUEST))
    await until_asked(vllm)
    vllm.is_healthy = healthy
    await engine.hang_up()
    if healthy:  # a false alarm: the request is sent again
        assert (await asking).attempts == 2
    else:
        with pytest.raises(EngineDown):
            await asking
    await engine.close()


@pytest.mark.parametrize("ranks", [1, 3])
async def test_a_probe_tries_every_rank(vllm: Vllm, ranks: int) -> None:
    vllm.replies = [good] * ranks
    samples = [line for line in METRICS.splitlines() if line.startswith("vllm:")]
    vllm.metrics = "".join(line.replace('engine="0"', f'engine="{n}"') + "\n" for n in range(ranks) for line in samples)
    vllm.metrics_at_first = "".join(line + "\n" for line in vllm.metrics.splitlines() if "usage_perc" not in line)
    engine = VllmEngine(vllm.url, 5, 0)
    info = await engine.probe(SAMPLING)
    readings = await engine.read()
    await engine.close()
    assert (info.version, info.context_tokens, info.page_size, info.pool_tokens) == ("0.32.0", 4096, 32, 15328)
    assert info.dp_ranks == tuple(readings) == tuple(range(ranks))
    assert info.pool_tokens_by_rank == (15328,) * ranks
    assert info.missing_signals == ("occupancy",)
    assert vllm.ranks == ([None] if ranks == 1 else ["0", "1", "2"])
    assert {body["temperature"] for body in vllm.bodies} == {0.5}


async def test_a_server_that_tells_no_cached_tokens_is_found_out_by_the_probe(vllm: Vllm) -> None:
    vllm.replies = [answers(ANSWER | {"usage": ANSWER["usage"] | {"prompt_tokens_details": None}})]
    engine = VllmEngine(vllm.url, 5, 0)
    info = await engine.probe({})
    await engine.close()
    assert info.missing_signals == ("occupancy", "cached tokens")


async def test_what_is_not_told_is_no_zero(vllm: Vllm) -> None:
    untold = ANSWER | {"usage": ANSWER["usage"] | {"prompt_tokens_details": None}}
    generation = await ask(vllm, answers(untold))
    assert (generation.cached_device_tokens, generation.retractions) == (None, None)


async def test_a_probe_tells_what_the_engine_refuses(vllm: Vllm) -> None:
    vllm.replies = [answers(ERRORS["temperature"], 400)]
    engine = VllmEngine(vllm.url, 5, 0)
    with pytest.raises(RequestRejected, match="temperature"):
        await engine.probe({"temperature": -1})
    await engine.close()


async def test_what_is_no_vllm_is_told_in_one_line(vllm: Vllm) -> None:
    engine = VllmEngine(f"{vllm.url}/other", 5, 0)
    with pytest.raises(EngineError, match="is this a vLLM server"):
        await engine.probe({})
    await engine.close()


async def test_metrics_that_make_no_sense_are_an_error_of_the_engine(vllm: Vllm) -> None:
    vllm.metrics = 'vllm:num_requests_running{engine="0"} +Inf\n'
    engine = VllmEngine(vllm.url, 5, 0)
    with pytest.raises(EngineError, match="/metrics is not as vLLM's"):
        await engine.read()
    await engine.close()
