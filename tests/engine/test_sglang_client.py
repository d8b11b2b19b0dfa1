"""The client against a server that misbehaves in every way that a real one has been seen to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from concur_batch.engine.protocol import ContextOverflow, EngineError, GenerationRequest, RequestRejected
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

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/abort_request", self.abort)
        app.router.add_get("/ready", self.ready)
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

    async def ready(self, request: web.Request) -> web.Response:
        return web.Response()


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr("concur_batch.engine.sglang.random.uniform", lambda low, high: 0.0)
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


async def test_an_overflow_is_told_apart(server: Server) -> None:
    message = "The input (9 tokens) is longer than the model's context length (8 tokens)."
    with pytest.raises(ContextOverflow):
        await ask(server, says(400, message))

    async def aborted(body: dict[str, Any]) -> web.Response:
        reason = {"type": "abort", "message": "Request prompt exceeds the KV memory budget", "status_code": 400}
        return web.json_response({"output_ids": [], "meta_info": {"finish_reason": reason, "prompt_tokens": 3}})

    with pytest.raises(ContextOverflow):
        await ask(server, aborted)


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


async def test_what_is_no_sglang_is_told_in_one_line(server: Server) -> None:
    engine = SglangEngine(server.url, 5, 0)
    with pytest.raises(EngineError, match="is this a SGLang server"):
        await engine.probe({})
    await engine.close()
