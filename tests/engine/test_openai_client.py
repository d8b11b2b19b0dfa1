"""The client of chat completions against a server that is as strict as OpenAI's, and that fails in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from concur_batch.engine.openai import OpenaiEngine
from concur_batch.engine.protocol import (
    Chat,
    ContextOverflow,
    EngineDown,
    EngineError,
    Generation,
    GenerationRequest,
    RequestRejected,
)
from tests.engine.chat_server import ChatServer, Reply, calls, refused, says, tokens_of

HELLO = [{"role": "user", "content": "Hello."}]
TOOLS = [{"type": "function", "function": {"name": "t", "description": "d", "parameters": {"type": "object"}}}]
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": -1, "stop": ["\n"]}
EMPTY = np.empty(0, dtype=np.int32)


@pytest.fixture
async def chat(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatServer]:
    monkeypatch.setattr("concur_batch.engine.http.random.uniform", lambda low, high: 0.0)
    server = ChatServer(tells_cached=True)
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"  # type: ignore[attr-defined]
    yield server
    await runner.cleanup()


def engine_of(server: ChatServer, seconds: float = 5, retries: int = 2, **more: Any) -> OpenaiEngine:
    return OpenaiEngine(server.url, seconds, retries, **{"api_key": None, "model": "m", **more})  # type: ignore[attr-defined]


def request(chat: Chat | None = Chat(HELLO), **more: Any) -> GenerationRequest:  # noqa: B008
    return GenerationRequest("r" * 16, EMPTY, 20, 7, **{"sampling": SAMPLING, "chat": chat, **more})


async def ask(server: ChatServer, *replies: Reply, asked: GenerationRequest | None = None, **more: Any) -> Generation:
    server.replies = list(replies)
    engine = engine_of(server, **more)
    try:
        return await engine.generate(asked or request())
    finally:
        await engine.close()


def answers(body: Any, status: int = 200, **headers: str) -> Reply:
    async def reply() -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(body, status=status, headers=named)

    return reply


def refuses(message: str, status: int = 400, code: str | None = None) -> Reply:
    async def reply() -> web.StreamResponse:
        return refused(message, status, code)

    return reply


async def hangs() -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError


async def test_what_is_sent_and_what_is_told(chat: ChatServer) -> None:
    chat.model = lambda messages, body: calls(("t", {"x": 1}), content="So.")
    generation = await ask(chat, asked=request(Chat(HELLO, TOOLS), logprobs=True))
    (body,) = chat.bodies
    assert body == {
        "model": "m", "messages": HELLO, "tools": TOOLS, "max_tokens": 20, "seed": 7, "logprobs": True,
        "temperature": 0.5, "top_p": 0.9, "stop": ["\n"],
    }  # fmt: skip
    assert generation.message is not None
    assert generation.message["tool_calls"][0]["function"] == {"name": "t", "arguments": '{"x": 1}'}
    assert (generation.finish_reason, generation.output_ids, generation.attempts) == ("stop", [], 1)
    assert (generation.input_tokens, generation.cached_device_tokens) == (tokens_of(HELLO), 0)
    assert generation.context_tokens == generation.input_tokens + generation.output_tokens
    assert generation.logprobs == [-0.5] * generation.output_tokens
    assert generation.retractions is None


async def test_a_repeated_prefix_is_a_hit_where_it_is_told(chat: ChatServer) -> None:
    longer = [*HELLO, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    await ask(chat)
    assert (await ask(chat, asked=request(Chat(longer)))).cached_device_tokens == tokens_of(HELLO)
    chat.tells_cached = False
    assert (await ask(chat, asked=request(Chat(longer)))).cached_device_tokens is None


async def test_a_parameter_is_sent_only_where_it_is_set_and_extras_verbatim(chat: ChatServer) -> None:
    with pytest.raises(RequestRejected, match="top_k"):  # the server is OpenAI's kind
        await ask(chat, asked=request(sampling={"top_k": 20}))
    assert chat.bodies[-1]["top_k"] == 20
    await ask(chat, asked=request(sampling={"response_format": {"type": "text"}}))
    assert chat.bodies[-1]["response_format"] == {"type": "text"}
    assert "tools" not in chat.bodies[-1]


@pytest.mark.parametrize(("reason", "told"), [("stop", "stop"), ("tool_calls", "stop"), ("length", "length")])
async def test_finish_reasons(chat: ChatServer, reason: str, told: str) -> None:
    chat.model = lambda messages, body: says("x", reason)
    assert (await ask(chat)).finish_reason == told


async def test_a_filtered_answer_is_not_asked_for_again_and_an_abort_is(chat: ChatServer) -> None:
    chat.model = lambda messages, body: says("", "content_filter")
    with pytest.raises(RequestRejected, match="content_filter"):
        await ask(chat)
    assert len(chat.bodies) == 1
    chat.model = lambda messages, body: says("", "abort")
    with pytest.raises(EngineError, match=r"abort.*3 tries"):
        await ask(chat)
    assert len(chat.bodies) == 4


async def test_the_newer_name_of_the_bound_is_taken_once_it_is_asked_for(chat: ChatServer) -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    chat.replies = [refuses(said, code="unsupported_parameter")] * 2  # two are asked at the same time
    engine = engine_of(chat)
    await asyncio.gather(engine.generate(request()), engine.generate(request()))
    await engine.generate(request())
    await engine.close()
    names = sorted(key for body in chat.bodies for key in body if key.startswith("max_"))
    assert names == ["max_completion_tokens"] * 3 + ["max_tokens"] * 2


@pytest.mark.parametrize(
    "reply",
    [
        refuses("Your input exceeds the window of this model.", code="context_length_exceeded"),
        refuses("This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens"),
        refuses("max_tokens must be at least 1, got 0."),
        answers({"object": "error", "message": "The input (5000 tokens) is longer than the model's context length "
                 "(4096 tokens).", "type": "BadRequestError", "param": None, "code": 400}, 400),
        answers({"object": "error", "message": "Input length (5000 tokens) exceeds the maximum allowed length "
                 "(3072 tokens).", "code": 400}, 400),
        answers({"error": {"code": 400, "type": "exceed_context_size_error",
                 "message": "request (9412 tokens) exceeds the available context size (8192 tokens)"}}, 400),
    ],
    ids=["OpenAI", "vLLM", "vLLM, full", "SGLang", "SGLang, pool", "llama.cpp"],
)  # fmt: skip
async def test_an_overflow_is_one_in_every_dialect(chat: ChatServer, reply: Reply) -> None:
    with pytest.raises(ContextOverflow):
        await ask(chat, reply)
    assert len(chat.bodies) == 1


async def test_what_is_refused_is_not_sent_again(chat: ChatServer) -> None:
    with pytest.raises(RequestRejected, match="HTTP 400: temperature is bad") as caught:
        await ask(chat, refuses("temperature is bad"))
    assert not isinstance(caught.value, ContextOverflow)
    assert len(chat.bodies) == 1


@pytest.mark.parametrize(
    "reply",
    [answers({}, 500), answers("x", 502), answers([1]), answers({"choices": []}), refuses("slow down", 429)],
    ids=["500", "502", "no object", "no choice", "429"],
)
async def test_what_may_go_well_the_next_time_is_sent_again(chat: ChatServer, reply: Reply) -> None:
    assert (await ask(chat, reply, reply)).attempts == 3
    with pytest.raises(EngineError, match="2 tries"):
        await ask(chat, reply, reply, retries=1)


@pytest.mark.parametrize(
    ("header", "status", "waited"),
    [
        ("7", 429, 7.0),
        ("0.5", 503, 0.5),
        ("3600", 429, 0.0),
        ("7", 500, 0.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 429, 0),
    ],
)
async def test_a_short_wait_that_the_server_asks_for_is_kept(
    chat: ChatServer, monkeypatch: pytest.MonkeyPatch, header: str, status: int, waited: float
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("concur_batch.engine.http.asyncio.sleep", sleep)
    generation = await ask(chat, answers({"error": {"message": "slow down"}}, status, Retry_After=header), good(chat))
    assert generation.attempts == 2
    assert waits[:1] == [waited]


def good(chat: ChatServer) -> Reply:
    """An answer at once, where a server that waits would be seen among the waits."""
    return answers(chat._answer({"messages": HELLO}))


async def test_a_server_that_is_gone_is_down_and_a_slow_one_is_asked_again(chat: ChatServer) -> None:
    with pytest.raises(EngineError, match="no answer within") as caught:
        await ask(chat, hangs, hangs, seconds=0.2, retries=1)
    assert not isinstance(caught.value, EngineDown)
    chat.is_up = False
    with pytest.raises(EngineDown):
        await ask(chat)
    assert len(chat.bodies) == 2


async def test_a_timeout_ends_the_request_on_the_server_too(chat: ChatServer) -> None:
    dropped = asyncio.Event()

    async def hangs_until_it_is_dropped() -> web.StreamResponse:
        try:
            return await hangs()
        finally:
            dropped.set()

    assert (await ask(chat, hangs_until_it_is_dropped, good(chat), seconds=1)).attempts == 2
    async with asyncio.timeout(10):
        await dropped.wait()


@pytest.mark.parametrize("tells_cached", [False, True])
async def test_a_probe(chat: ChatServer, tells_cached: bool) -> None:
    chat.tells_cached = tells_cached
    engine = OpenaiEngine(f"{chat.url}/v1/", 5, 0, None, "m")  # type: ignore[attr-defined]
    info = await engine.probe({"temperature": 0.5}, TOOLS)
    readings = await engine.read()
    await engine.close()
    assert (info.context_tokens, info.pool_tokens, info.pool_tokens_by_rank) == (8000, None, (None,))
    silent = ("KV usage", "occupancy", "hit rate")
    assert info.missing_signals == (silent if tells_cached else (*silent, "cached tokens"))
    (body,) = chat.bodies
    assert (body["temperature"], body["max_tokens"], body["tools"]) == (0.5, 1, TOOLS)
    assert [(reading.pool_tokens, reading.locked_tokens) for reading in readings.values()] == [(None, None)]


async def test_a_model_that_is_not_served_is_told_with_those_that_are(chat: ChatServer) -> None:
    chat.names = ["qwen", "llama"]
    engine = engine_of(chat)
    with pytest.raises(EngineError, match=r"serves no 'm', but qwen, llama: mend model\.name"):
        await engine.probe({})
    await engine.close()


async def test_a_probe_tells_what_is_refused(chat: ChatServer) -> None:
    chat.takes_tools = False
    engine = engine_of(chat)
    await engine.probe({})
    with pytest.raises(RequestRejected, match="--enable-auto-tool-choice"):
        await engine.probe({}, TOOLS)
    with pytest.raises(RequestRejected, match="top_k"):
        await engine.probe({"top_k": 5})
    await engine.close()


async def test_a_key_is_sent_and_asked_for(chat: ChatServer) -> None:
    chat.key = "secret"
    for key in (None, "secret"):
        engine = engine_of(chat, api_key=key)
        if key is None:
            with pytest.raises(EngineError, match=r"engine\.api_key"):
                await engine.probe({})
        else:
            await engine.probe({})
        await engine.close()


async def test_a_server_that_is_gone_gives_no_reading(chat: ChatServer) -> None:
    chat.is_up = False
    engine = engine_of(chat)
    with pytest.raises(EngineError):
        await engine.read()
    assert not await engine.ready()
    await engine.close()


async def test_what_is_no_such_server_is_told_in_one_line(chat: ChatServer) -> None:
    engine = OpenaiEngine(f"{chat.url}/other", 5, 0, None, "m")  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="is this a chat completions server"):
        await engine.probe({})
    await engine.close()
