"""The client against a server that misbehaves in every way that a real one has been seen to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineDown,
    EngineError,
    GenerationRequest,
    PoolOverflow,
    RequestRejected,
)
from concur_batch.engine.sglang import SglangEngine

ANSWER = {
    "output_ids": [7, 8],
    "meta_info": {"prompt_tokens": 3, "cached_tokens": 2, "finish_reason": {"type": "stop"}},
}
REQUEST = GenerationRequest("r" * 16, np.arange(3, dtype=np.int32), 5, 1, {"temperature": 0.5})
Reply = Callable[[dict[str, Any]], Awaitable[web.StreamResponse]]


class Server:
    """Answers `/generate` with the replies it is given, one after the other, and notes what it was sent."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.is_ready = True
        self.knows_ready = True
        self.told: bytes | None = None
        self.asked_ready = 0
        self.dp_size = 1

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/abort_request", self.abort)
        app.router.add_get("/ready", self.ready)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/server_info", self.server_info)
        app.router.add_get("/metrics", self.metrics)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        return await self.replies.pop(0)(self.bodies[-1])

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_ready else 503)

    async def ready(self, request: web.Request) -> web.Response:
        self.asked_ready += 1
        await asyncio.sleep(0.05)  # as long as others may join in the question
        return web.Response(status=(200 if self.is_ready else 503) if self.knows_ready else 404)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 8192}]})

    async def server_info(self, request: web.Request) -> web.Response:
        info = {"version": "0.5.23", "dp_size": self.dp_size, "page_size": 16, "max_req_input_len": 94}
        return web.json_response({**info, "max_total_num_tokens": 100, "context_length": None})

    async def metrics(self, request: web.Request) -> web.Response:
        """A rank's gauges appear once it has generated; rank 1's pool is smaller."""
        if self.told is not None:
            return web.Response(body=self.told + b"\n", content_type="text/plain", charset="utf-8")
        ranks = {body.get("routed_dp_rank", 0) for body in self.bodies}
        label = ',dp_rank="{}"' if self.dp_size > 1 else ""
        lines = [
            f'sglang:{name}{{tp_rank="{rank}"{label.format(rank)}}} {value}\n'
            for rank in ranks
            for name, value in (("max_total_num_tokens", 100 - rank), ("kv_used_tokens", 5), ("kv_evictable_tokens", 6))
        ]
        return web.Response(text="".join(lines))


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr("concur_batch.engine.http.random.uniform", lambda low, high: 0.0)
    server = Server()
    await server.start()
    yield server
    await server.runner.cleanup()


async def ask(server: Server, *replies: Reply, seconds: float = 5, retries: int = 2) -> Any:
    server.replies = list(replies)
    engine = SglangEngine(server.url, seconds, retries)
    try:
        return await engine.generate(REQUEST)
    finally:
        await engine.close()


async def good(body: dict[str, Any]) -> web.Response:
    return web.json_response(ANSWER)


def says(status: int, text: str) -> Reply:
    async def reply(body: dict[str, Any]) -> web.Response:
        return web.Response(status=status, text=text)

    return reply


async def hangs(body: dict[str, Any]) -> web.Response:
    await asyncio.sleep(60)
    raise AssertionError


async def test_an_answer(server: Server) -> None:
    generation = await ask(server, good)
    assert (generation.output_ids, generation.input_tokens, generation.cached_device_tokens) == ([7, 8], 3, 2)
    (body,) = server.bodies
    assert body["input_ids"] == [0, 1, 2]
    assert body["sampling_params"] == {"temperature": 0.5, "max_new_tokens": 5, "sampling_seed": 1}


@pytest.mark.parametrize(
    "fault",
    [
        says(500, "boom"),
        says(503, "The request queue is full."),
        says(200, "no json"),
        says(200, "{}"),
        says(429, "slow"),
    ],
)
async def test_a_fault_is_tried_again_under_a_rid_of_its_own(server: Server, fault: Reply) -> None:
    generation = await ask(server, fault, good)
    assert generation.attempts == 2
    rids = [body["rid"] for body in server.bodies]
    assert len(set(rids)) == 2
    assert len({len(rid) for rid in rids}) == 1  # none can be a prefix of another, by which engines abort


async def test_tries_end(server: Server) -> None:
    with pytest.raises(EngineError, match=r"boom.*3 tries"):
        await ask(server, *[says(500, "boom")] * 3)


async def test_what_is_refused_is_not_sent_again(server: Server) -> None:
    with pytest.raises(RequestRejected, match="bad regex"):
        await ask(server, says(400, "bad regex"))
    assert len(server.bodies) == 1


KV_BUDGET = "Request prompt exceeds the KV memory budget: input_len=3."
INPUT_LIMIT = "Input length (9000 tokens) exceeds the maximum allowed length ({} tokens). Use a shorter input."


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("The input (9 tokens) is longer than the model's context length (8 tokens).", ContextOverflow),
        ("Requested token count exceeds the model's maximum context length of 8 tokens.", ContextOverflow),
        (INPUT_LIMIT.format(8186), ContextOverflow),  # the context of 8192, less what is kept for the output
        (INPUT_LIMIT.format(8185), PoolOverflow),
        (KV_BUDGET, PoolOverflow),
    ],
)
async def test_an_overflow_is_told_apart(server: Server, message: str, kind: type[Exception]) -> None:
    async def aborted(body: dict[str, Any]) -> web.Response:
        reason = {"type": "abort", "message": message, "status_code": 400}
        return web.json_response({"output_ids": [], "meta_info": {"finish_reason": reason, "prompt_tokens": 3}})

    for reply in (says(400, message), aborted):
        with pytest.raises(ContextOverflow, match=r"length|budget") as caught:
            await ask(server, reply)
        assert type(caught.value) is kind
    assert len(server.bodies) == 2  # neither was sent again


async def test_a_timeout_aborts_the_request_on_the_engine(server: Server) -> None:
    generation = await ask(server, hangs, good, seconds=0.3)
    assert server.aborted == [server.bodies[0]["rid"]]
    assert generation.attempts == 2


async def test_a_cancelled_call_aborts_the_request_on_the_engine(server: Server) -> None:
    asking = asyncio.create_task(ask(server, hangs))
    while not server.bodies:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert server.aborted == [server.bodies[0]["rid"]]


async def breaks(body: dict[str, Any]) -> web.StreamResponse:
    """A connection that ends in the midst of an answer."""
    raise asyncio.CancelledError


@pytest.mark.parametrize("metrics", [b"sglang:kv_used_tokens 1\xff", b"sglang:kv_used_tokens +Inf"])
async def test_metrics_that_make_no_sense_are_an_error_of_the_engine(server: Server, metrics: bytes) -> None:
    server.told = metrics
    client = SglangEngine(server.url, 5, 0)
    with pytest.raises(EngineError):
        await client.read()
    await client.close()


@pytest.mark.parametrize("healthy", [True, False])
async def test_a_server_without_ready_is_asked_for_its_health(server: Server, healthy: bool) -> None:
    server.knows_ready, server.is_ready = False, healthy
    client = SglangEngine(server.url, 5, 0)
    assert await client.ready() is healthy
    await client.close()


async def test_a_connection_that_breaks_while_the_server_is_ready_is_tried_again(server: Server) -> None:
    generation = await ask(server, breaks, good)
    assert generation.attempts == 2
    assert server.asked_ready == 1


@pytest.mark.parametrize("fault", [breaks, says(503, "draining"), says(500, "boom"), says(502, "bad gateway")])
async def test_a_server_that_takes_no_requests_is_down_and_not_waited_for(server: Server, fault: Reply) -> None:
    server.is_ready = False
    with pytest.raises(EngineDown):
        await ask(server, fault, retries=5)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("ready", [True, False])
async def test_hanging_up_breaks_off_what_waits_and_nothing_else(server: Server, ready: bool) -> None:
    server.replies = [hangs, good]
    client = SglangEngine(server.url, 60, 1)
    asking = asyncio.create_task(client.generate(REQUEST))
    while not server.bodies:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    server.is_ready = ready
    await client.hang_up()
    if ready:  # a false alarm: the request is sent again
        assert (await asking).attempts == 2
    else:
        with pytest.raises(EngineDown):
            await asking
    await client.close()


async def test_a_server_that_hangs_and_takes_no_requests_is_down(server: Server) -> None:
    server.is_ready = False
    with pytest.raises(EngineDown, match="no answer within"):
        await ask(server, hangs, seconds=0.3)
    assert server.aborted == [server.bodies[0]["rid"]]


async def test_a_server_that_dies_under_a_generation_is_down(server: Server) -> None:
    asking = asyncio.create_task(ask(server, hangs))
    while not server.bodies:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await server.runner.cleanup()
    with pytest.raises(EngineDown):
        await asking


async def test_a_server_that_is_not_there_is_down(server: Server) -> None:
    await server.runner.cleanup()
    with pytest.raises(EngineDown):
        await ask(server)


async def test_all_who_find_it_down_share_one_question(server: Server) -> None:
    server.is_ready = False
    server.replies = [breaks] * 20
    engine = SglangEngine(server.url, 5, 2)
    outcomes = await asyncio.gather(*(engine.generate(REQUEST) for _ in range(20)), return_exceptions=True)
    await engine.close()
    assert {type(outcome) for outcome in outcomes} == {EngineDown}
    assert server.asked_ready < 5


async def test_the_same_request_sent_again_has_another_rid(server: Server) -> None:
    """The engine may still work on the first, of which it has not noticed that nobody waits."""
    server.replies = [good, good]
    engine = SglangEngine(server.url, 5, 0)
    for _ in range(2):
        await engine.generate(REQUEST)
    await engine.close()
    first, second = (body["rid"] for body in server.bodies)
    assert first != second and len(first) == len(second)


async def test_a_request_is_pinned_to_its_rank(server: Server) -> None:
    server.replies = [good, good]
    engine = SglangEngine(server.url, 5, 0)
    await engine.generate(replace(REQUEST, dp_rank=0))
    await engine.generate(REQUEST)
    await engine.close()
    assert server.bodies[0]["routed_dp_rank"] == 0
    assert "routed_dp_rank" not in server.bodies[1]


@pytest.mark.parametrize(("dp_size", "pools"), [(1, (100,)), (3, (100, 99, 98))])
async def test_a_probe_wakes_every_rank(server: Server, dp_size: int, pools: tuple[int, ...]) -> None:
    server.dp_size, server.replies = dp_size, [good] * dp_size
    engine = SglangEngine(server.url, 5, 0)
    info = await engine.probe({"temperature": 0.5})
    readings = await engine.read()
    await engine.close()
    assert info.dp_ranks == tuple(readings) == tuple(range(dp_size))
    assert (info.pool_tokens_by_rank, info.pool_tokens) == (pools, min(pools))
    assert (info.context_tokens, info.page_size, info.missing_signals) == (8192, 16, ("hit rate",))
    assert [body.get("routed_dp_rank") for body in server.bodies] == ([None] if dp_size == 1 else list(range(dp_size)))


async def test_what_is_no_sglang_is_told_in_one_line(server: Server) -> None:
    engine = SglangEngine(f"{server.url}/other", 5, 0)
    with pytest.raises(EngineError, match="is this a SGLang server"):
        await engine.probe({})
    await engine.close()
