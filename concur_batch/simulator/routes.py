"""SGLang's own routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from concur_batch.simulator.ask import BadRequest, read_ask
from concur_batch.simulator.metrics import render_loads, render_metrics, render_model_info, render_server_info
from concur_batch.simulator.request import RequestRejected
from concur_batch.simulator.service import Generation, Progress, Service
from concur_batch.simulator.sse import json_response, read_object, stream_response


class Routes:
    """`/generate`, and what operates and observes the engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register them."""
        router.add_post("/generate", self.generate)
        router.add_post("/abort_request", self.abort_request)
        router.add_route("*", "/flush_cache", self.flush_cache)
        router.add_route("*", "/close_session", self.close_session)
        for path, handler in {
            "/metrics": self.metrics,
            "/v1/loads": self.loads,
            "/server_info": self.server_info,
            "/get_server_info": self.server_info,
            "/model_info": self.model_info,
            "/get_model_info": self.model_info,
            "/health": self.health,
            "/health_generate": self.health,
            "/ready": self.health,
        }.items():
            router.add_get(path, handler)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate. A client that goes away aborts its request.

        As in SGLang, an error of a request to be streamed comes as an event.
        """
        stream = False
        try:
            body = await read_object(request)
            ask = read_ask(body, self._service.tokenizer, self._service.vocabulary)
            stream = ask.stream
            with self._service.generation(ask) as generation:
                if stream:
                    return await stream_response(request, _events(generation))
                return json_response(_answer(generation, await generation.end()))
        except (BadRequest, RequestRejected) as error:
            if stream:
                return await stream_response(request, _error_event(str(error)))
            return _refusal(str(error))

    async def abort_request(self, request: web.Request) -> web.Response:
        """POST /abort_request: every request whose rid starts with `rid`, or all."""
        try:
            body = await read_object(request)
        except BadRequest as error:
            return _refusal(str(error))
        rid, everything = body.get("rid"), bool(body.get("abort_all"))
        if not everything and not (isinstance(rid, str) and rid):
            return _refusal("Give `rid`, a string, or `abort_all`.")
        for driver in self._service.drivers:
            driver.abort("" if everything else str(rid))
        return web.Response()

    async def flush_cache(self, request: web.Request) -> web.Response:
        """POST or GET /flush_cache: 400 while requests are in progress at a rank, whose cache is then in use."""
        flushed = [driver.flush_cache() for driver in self._service.drivers]  # every rank that can, as SGLang does
        if all(flushed):
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Flush cache failed: requests are in progress.\n", status=400)

    async def close_session(self, request: web.Request) -> web.Response:
        """POST or GET /close_session: at every rank, which all take an unknown `session_id` too."""
        try:
            body = await read_object(request)
        except BadRequest as error:
            return _refusal(str(error))
        session = body.get("session_id")
        if not isinstance(session, str):
            return _refusal("Give `session_id`, a string.")
        for driver in self._service.drivers:
            driver.close_session(session)
        return web.Response()

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics. Gauges are as of now, and not of the last report."""
        config = self._service.config
        text = render_metrics(config.model_name, config.engine, self._service.counters(), self._service.served)
        return web.Response(text=text, content_type="text/plain")

    async def loads(self, request: web.Request) -> web.Response:
        """GET /v1/loads."""
        clock = self._service.drivers[0]
        stamp = clock.wall_seconds(clock.now_seconds())
        return json_response(render_loads(self._service.config.engine, self._service.counters(), stamp))

    async def server_info(self, request: web.Request) -> web.Response:
        """GET /server_info."""
        return json_response(render_server_info(self._service.config))

    async def model_info(self, request: web.Request) -> web.Response:
        """GET /model_info."""
        return json_response(render_model_info(self._service.config))

    async def health(self, request: web.Request) -> web.Response:
        """GET /health, /health_generate and /ready: it serves."""
        return web.Response()


def _answer(generation: Generation, progress: Progress) -> dict[str, Any]:
    """Of the whole output so far."""
    return {
        "text": progress.text,
        "output_ids": generation.output.ids[: progress.tokens],
        "meta_info": generation.meta_info(progress),
    }


async def _events(generation: Generation) -> AsyncIterator[object]:
    async for progress in generation.progress():
        yield _answer(generation, progress)


async def _error_event(message: str) -> AsyncIterator[object]:
    yield {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}


def _refusal(message: str) -> web.Response:
    return json_response({"error": {"message": message}}, status=400)
