"""OpenAI's routes, answered as SGLang answers them."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from aiohttp import web

from concur_batch.simulator.ask import BadRequest
from concur_batch.simulator.calls import CallReader, ParsedCall, read_calls
from concur_batch.simulator.metrics import SIMULATED
from concur_batch.simulator.openai_ask import OpenaiAsk, read_chat, read_completion
from concur_batch.simulator.request import RequestRejected
from concur_batch.simulator.service import Generation, Progress, Service
from concur_batch.simulator.sse import json_response, read_object, stream_response

Events = Callable[[OpenaiAsk, Generation], AsyncIterator[object]]
Answer = Callable[[OpenaiAsk, Generation, Progress], dict[str, Any]]


class OpenaiRoutes:
    """`/v1/chat/completions`, `/v1/completions` and `/v1/models`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._created = int(time.time())

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register them."""
        router.add_post("/v1/chat/completions", self.chat)
        router.add_post("/v1/completions", self.completion)
        router.add_get("/v1/models", self.models)
        router.add_get("/v1/models/{model:.+}", self.model)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        service, config = self._service, self._service.config

        def read(body: dict[str, Any], rank: object) -> OpenaiAsk:
            parses = config.tool_call_parser is not None
            return read_chat(body, service.prompt, service.tokenizer, service.vocabulary, parses, rank)

        return await self._respond(request, read, _chat_answer, _chat_events)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        service = self._service

        def read(body: dict[str, Any], rank: object) -> OpenaiAsk:
            return read_completion(body, service.tokenizer, service.vocabulary, rank)

        return await self._respond(request, read, _completion_answer, _completion_events)

    async def _respond(
        self,
        request: web.Request,
        read: Callable[[dict[str, Any], object], OpenaiAsk],
        answer: Answer,
        events: Events,
    ) -> web.StreamResponse:
        """What is refused is refused before a stream begins."""
        try:
            ask = read(await read_object(request), _header_rank(request))
            with self._service.generation(ask.ask) as generation:
                if ask.ask.stream:
                    return await stream_response(request, events(ask, generation))
                return json_response(answer(ask, generation, await generation.end()))
        except (BadRequest, RequestRejected) as error:
            refusal = {"object": "error", "message": str(error), "type": "BadRequest", "param": None, "code": 400}
            return json_response(refusal, status=400)

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        return json_response({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}: the only route at which SGLang minds a model's name."""
        name = request.match_info["model"]
        if name == self._service.config.model_name:
            return json_response(self._card())
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return json_response({"error": error}, status=404)

    def _card(self) -> dict[str, Any]:
        config = self._service.config
        return {
            "id": config.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": SIMULATED,
            "root": config.model_name,
            "parent": None,
            "max_model_len": config.engine.context_tokens,
        }


def _header_rank(request: web.Request) -> int | None:
    value = request.headers.get("X-Data-Parallel-Rank")
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        message = f"Invalid X-Data-Parallel-Rank header: must be an integer, got '{value}'"
        raise BadRequest(message) from None


def _usage(generation: Generation, tokens: int) -> dict[str, Any]:
    """As with SGLang's `--enable-cache-report`."""
    prompt = generation.run.sequence.input_tokens
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + tokens,
        "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def _end(generation: Generation, progress: Progress, *, called: bool = False) -> dict[str, Any]:
    """How a choice ends; no reason while it goes on."""
    if progress.completion is None:
        return {"finish_reason": None, "matched_stop": None}
    reason = generation.finish_reason(progress.completion)
    if called and reason["type"] == "stop":
        return {"finish_reason": "tool_calls", "matched_stop": None}
    return {"finish_reason": reason["type"], "matched_stop": reason.get("matched")}


def _tool_call(call: ParsedCall, index: int) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "index": index,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _head(ask: OpenaiAsk, generation: Generation, kind: str) -> dict[str, Any]:
    return {"id": generation.rid, "object": kind, "created": int(time.time()), "model": ask.model}


def _chat_answer(ask: OpenaiAsk, generation: Generation, progress: Progress) -> dict[str, Any]:
    content, calls = read_calls(progress.text, ask.functions) if ask.functions else (progress.text, [])
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": None}
    if calls:
        message["tool_calls"] = [_tool_call(call, index) for index, call in enumerate(calls)]
    choice = {"index": 0, "message": message, "logprobs": None, **_end(generation, progress, called=bool(calls))}
    usage = _usage(generation, progress.tokens)
    return {**_head(ask, generation, "chat.completion"), "choices": [choice], "usage": usage}


def _completion_answer(ask: OpenaiAsk, generation: Generation, progress: Progress) -> dict[str, Any]:
    choice = {"index": 0, "text": progress.text, "logprobs": None, **_end(generation, progress)}
    usage = _usage(generation, progress.tokens)
    return {**_head(ask, generation, "text_completion"), "choices": [choice], "usage": usage}


async def _chat_events(ask: OpenaiAsk, generation: Generation) -> AsyncIterator[object]:
    """The role, what is said and called as it comes, how it ended, and the usage if it is wanted.

    A call is one event, once it is complete.
    """
    head = _head(ask, generation, "chat.completion.chunk")
    reader = CallReader(ask.functions) if ask.functions else None
    sent = tokens = called = 0

    def chunk(delta: dict[str, Any], **end: Any) -> dict[str, Any]:
        ends = {"finish_reason": None, "matched_stop": None, **end}
        choice = {"index": 0, "delta": {"reasoning_content": None, **delta}, "logprobs": None, **ends}
        return _with_usage({**head, "choices": [choice]}, ask, generation, tokens)

    async for progress in generation.progress():
        if not tokens:
            yield chunk({"role": "assistant", "content": ""})
        said, sent, tokens = progress.text[sent:], max(sent, len(progress.text)), progress.tokens
        calls: Sequence[ParsedCall] = ()
        if reader is not None:
            said, calls = reader.feed(said)
            said += reader.finish() if progress.completion is not None else ""
        if said:
            yield chunk({"content": said})
        for call in calls:
            yield chunk({"tool_calls": [_tool_call(call, called)]})
            called += 1
        if progress.completion is not None:
            yield chunk({}, **_end(generation, progress, called=called > 0))
    if ask.include_usage:
        yield {**head, "choices": [], "usage": _usage(generation, tokens)}


async def _completion_events(ask: OpenaiAsk, generation: Generation) -> AsyncIterator[object]:
    head = _head(ask, generation, "text_completion")
    sent = tokens = 0
    async for progress in generation.progress():
        said, sent, tokens = progress.text[sent:], max(sent, len(progress.text)), progress.tokens
        choice = {"index": 0, "text": said, "logprobs": None, **_end(generation, progress)}
        yield _with_usage({**head, "choices": [choice]}, ask, generation, tokens)
    if ask.include_usage:
        yield {**head, "choices": [], "usage": _usage(generation, tokens)}


def _with_usage(chunk: dict[str, Any], ask: OpenaiAsk, generation: Generation, tokens: int) -> dict[str, Any]:
    return {**chunk, "usage": _usage(generation, tokens)} if ask.continuous_usage else chunk
