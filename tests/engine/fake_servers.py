"""Servers that speak an engine's protocol as a real one was seen to, and misbehave as they are told."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from aiohttp import web

from concur_batch.engine.protocol import EngineInfo, Generation, GenerationRequest
from concur_batch.engine.sglang import SglangEngine
from concur_batch.engine.vllm import VllmEngine

FIXTURES = Path(__file__).parents[1] / "fixtures"
VLLM_ANSWER = json.loads((FIXTURES / "vllm/completion.json").read_text())
VLLM_ERRORS = json.loads((FIXTURES / "vllm/errors.json").read_text())
VLLM_METRICS = (FIXTURES / "vllm/metrics_idle.txt").read_text()
SGLANG_ANSWER = {
    "output_ids": [7, 8],
    "meta_info": {"prompt_tokens": 3, "cached_tokens": 2, "finish_reason": {"type": "stop"}},
}
SAMPLING = {"temperature": 0.5, "stop": ["Observation:"], "ignore_eos": True}
REQUEST = GenerationRequest("r" * 16, np.arange(100, 400, dtype=np.int32), 6, 1, SAMPLING)
Reply = Callable[[], Awaitable[web.StreamResponse]]


def answers(answer: Any, status: int = 200) -> Reply:
    """A reply in JSON."""
    return says(status, json.dumps(answer))


def says(status: int, text: str) -> Reply:
    async def reply() -> web.Response:
        return web.Response(status=status, text=text)

    return reply


async def hangs() -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError


async def breaks() -> web.StreamResponse:
    """A connection that ends in the midst of an answer."""
    raise asyncio.CancelledError


class Fake(ABC):
    """Answers generations with the replies it is given, one after the other, and notes what it was sent."""

    client: ClassVar[type[SglangEngine] | type[VllmEngine]]
    server: ClassVar[str]  # its name in messages
    generates: ClassVar[str]
    rid_field: ClassVar[str]
    drops_what_hangs_up: ClassVar[bool]
    answer: ClassVar[dict[str, Any]]
    overflow: ClassVar[Reply]  # what a prompt over the context is answered with

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.bodies: list[dict[str, Any]] = []
        self.ranks: list[int | None] = []  # that each request was pinned to
        self.dropped: list[str] = []  # rids
        self.peers: set[object] = set()  # the other ends of the connections
        self.is_ready = True
        self.asked_ready = 0
        self.ranks_served = 1
        self.told: str | None = None  # instead of the metrics

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post(self.generates, self.generate)
        app.router.add_get("/metrics", self.metrics)
        for method, path, handler in self.routes():
            app.router.add_route(method, path, handler)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=self.drops_what_hangs_up)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def ask(
        self, *replies: Reply, request: GenerationRequest = REQUEST, seconds: float = 5, retries: int = 2
    ) -> Generation:
        """One request of a client that is closed again."""
        self.replies = list(replies)
        engine = self.client(self.url, seconds, retries)
        try:
            return await engine.generate(request)
        finally:
            await engine.close()

    async def probe(self) -> EngineInfo:
        """What a client that is closed again finds."""
        engine = self.client(self.url, 5, 0)
        try:
            return await engine.probe(SAMPLING)
        finally:
            await engine.close()

    async def until_asked(self) -> None:
        while not self.bodies:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    @property
    def rids(self) -> list[str]:
        return [body[self.rid_field] for body in self.bodies]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        self.ranks.append(self.rank(request, self.bodies[-1]))
        rid = self.rids[-1]
        try:
            return await self.replies.pop(0)()
        except asyncio.CancelledError:
            self.dropped.append(rid)
            raise

    async def ready(self, request: web.Request) -> web.Response:
        self.asked_ready += 1
        await asyncio.sleep(0.05)  # as long as others may join in the question
        return web.Response(status=200 if self.is_ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        text = self.told if self.told is not None else self.metrics_text()
        return web.Response(body=text.encode("latin-1"), content_type="text/plain", charset="utf-8")

    @abstractmethod
    def routes(self) -> list[tuple[str, str, Callable[[web.Request], Awaitable[web.StreamResponse]]]]: ...

    @abstractmethod
    def rank(self, request: web.Request, body: dict[str, Any]) -> int | None: ...

    @abstractmethod
    def metrics_text(self) -> str: ...


class FakeSglang(Fake):
    """A pool of 100 tokens, 99 on the second rank, 98 on the third."""

    client = SglangEngine
    server = "SGLang"
    generates = "/generate"
    rid_field = "rid"
    drops_what_hangs_up = False
    answer = SGLANG_ANSWER
    overflow = staticmethod(says(400, "The input (9 tokens) is longer than the model's context length (8 tokens)."))

    def __init__(self) -> None:
        super().__init__()
        self.knows_ready = True
        self.attention_ranks = False  # whether it serves them by data-parallel attention
        self.closed: list[str] = []  # sessions

    def routes(self) -> list[tuple[str, str, Callable[[web.Request], Awaitable[web.StreamResponse]]]]:
        return [
            ("POST", "/abort_request", self.abort),
            ("POST", "/close_session", self.close_session),
            ("GET", "/ready", self.newer_ready),
            ("GET", "/health", self.ready),
            ("GET", "/v1/models", self.models),
            ("GET", "/server_info", self.server_info),
        ]

    def rank(self, request: web.Request, body: dict[str, Any]) -> int | None:
        return body.get("routed_dp_rank")

    async def abort(self, request: web.Request) -> web.Response:
        self.dropped.append((await request.json())["rid"])
        return web.Response()

    async def close_session(self, request: web.Request) -> web.Response:
        self.closed.append((await request.json())["session_id"])
        return web.Response()

    async def newer_ready(self, request: web.Request) -> web.Response:
        return await self.ready(request) if self.knows_ready else web.Response(status=404)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 8192}]})

    async def server_info(self, request: web.Request) -> web.Response:
        sizes = [1, self.ranks_served] if self.attention_ranks else [self.ranks_served, 1]
        ranks = dict(zip(("dp_size", "attn_dp_size"), sizes, strict=True))
        info = {"version": "0.5.23", **ranks, "page_size": 16, "max_req_input_len": 94}
        return web.json_response({**info, "max_total_num_tokens": 100, "context_length": None})

    def metrics_text(self) -> str:
        """A rank's gauges appear once it has generated."""
        label = ',dp_rank="{}"' if self.ranks_served > 1 else ""
        return "".join(
            f'sglang:{name}{{tp_rank="{rank}"{label.format(rank)}}} {value}\n'
            for rank in {body.get("routed_dp_rank", 0) for body in self.bodies}
            for name, value in (("max_total_num_tokens", 100 - rank), ("kv_used_tokens", 5), ("kv_evictable_tokens", 6))
        )


class FakeVllm(Fake):
    """A pool of 15,328 tokens a rank."""

    client = VllmEngine
    server = "vLLM"
    generates = "/v1/completions"
    rid_field = "request_id"
    drops_what_hangs_up = True
    answer = VLLM_ANSWER
    overflow = staticmethod(answers(VLLM_ERRORS["context"], 400))

    def routes(self) -> list[tuple[str, str, Callable[[web.Request], Awaitable[web.StreamResponse]]]]:
        return [("GET", "/health", self.ready), ("GET", "/version", self.version), ("GET", "/v1/models", self.models)]

    def rank(self, request: web.Request, body: dict[str, Any]) -> int | None:
        rank = request.headers.get("X-data-parallel-rank")
        return None if rank is None else int(rank)

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})

    def metrics_text(self) -> str:
        """The usage appears with the first request."""
        samples = [line for line in VLLM_METRICS.splitlines() if line.startswith("vllm:")]
        return "".join(
            line.replace('engine="0"', f'engine="{rank}"') + "\n"
            for rank in range(self.ranks_served)
            for line in samples
            if self.bodies or "usage_perc" not in line
        )
