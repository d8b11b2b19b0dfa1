"""Servers to be examined: the simulated one behind faults, and a small vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.server import ServerConfig, make_app
from concur_batch.simulator.synthetic import SyntheticScript

MODEL = Path(__file__).parents[2] / "workloads" / "demo_model"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Fault = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def simulated(fault: Fault | None = None, dp_size: int = 1, page_size: int = 1) -> AsyncIterator[str]:
    """The URL of the simulated SGLang, whose every request passes through the fault."""
    app = make_app(
        ServerConfig(
            engine=EngineConfig(pool_tokens=20_000, page_size=page_size, context_tokens=4_000),
            synthetic=SyntheticScript(),
            tokenizer=MODEL,
            time_scale=10,
            dp_size=dp_size,
        )
    )
    if fault is not None:
        app.middlewares.append(web.middleware(fault))
    async with serving(app) as url:
        yield url


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def unserved(*paths: str) -> Fault:
    """These paths answer 404."""

    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        return web.Response(status=404) if request.path in paths else await handler(request)

    return fault


def answering(path: str, status: int, answer: object) -> Fault:
    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        return web.json_response(answer, status=status) if request.path == path else await handler(request)

    return fault


def frozen(*paths: str, since: int) -> Fault:
    """From the request number `since` for one of these paths on, its answer stays the same."""
    asked: dict[str, int] = {}
    kept: dict[str, bytes] = {}

    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in paths:
            return await handler(request)
        asked[request.path] = asked.get(request.path, 0) + 1
        if request.path in kept:
            return web.Response(body=kept[request.path])
        response = await handler(request)
        if asked[request.path] >= since:
            assert isinstance(response, web.Response) and isinstance(response.body, bytes)
            kept[request.path] = response.body
        return response

    return fault


def altered(change: Callable[[Mapping[str, Any], dict[str, Any]], None]) -> Fault:
    """The answer's `meta_info` of every generation is changed; `change` is given the request as well."""

    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if request.path != "/generate" or response.status != 200:
            return response
        assert isinstance(response, web.Response) and isinstance(response.body, bytes)
        answer = json.loads(response.body)
        change(await request.json(), answer["meta_info"])
        return web.json_response(answer)

    return fault


class Vllm:
    """A server that caches whole blocks of a prompt and tells what a vLLM tells."""

    def __init__(self, *, tells_cached: bool = True, tells_metrics: bool = True, caches: bool = True) -> None:
        self._tells_cached, self._tells_metrics, self._caches = tells_cached, tells_metrics, caches
        self._seen: set[tuple[int, ...]] = set()
        self._queries = self._hits = self._running = 0
        self.app = web.Application()
        self.app.router.add_post("/v1/completions", self._complete)
        self.app.router.add_get("/metrics", self._metrics)
        self.app.router.add_get("/health", self._health)
        self.app.router.add_get("/version", self._version)
        self.app.router.add_get("/server_info", self._version)  # as in its development mode
        self.app.router.add_get("/v1/models", self._models)

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = body["prompt"]
        blocks = [tuple(prompt[:end]) for end in range(16, len(prompt), 16)]
        hit = max((len(block) for block in blocks if block in self._seen), default=0) if self._caches else 0
        self._seen.update(blocks)
        self._queries += len(prompt)
        self._hits += hit
        self._running += 1
        await asyncio.sleep(0.2 if body["max_tokens"] > 1 else 0)
        self._running -= 1
        details = {"prompt_tokens_details": {"cached_tokens": hit}} if self._tells_cached else {}
        choice = {"token_ids": [7] * body["max_tokens"], "finish_reason": "length"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": len(prompt), **details}})

    async def _metrics(self, request: web.Request) -> web.Response:
        told = {
            "vllm:kv_cache_usage_perc": 0.1 * self._running,
            "vllm:num_requests_running": self._running,
            "vllm:num_requests_waiting": 0,
            "vllm:prefix_cache_queries_total": self._queries,
            "vllm:prefix_cache_hits_total": self._hits,
            'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="16016"}': 1,
        }
        lines = [f"{name} {value}\n" for name, value in told.items()] if self._tells_metrics else []
        return web.Response(text="".join(lines))

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})
