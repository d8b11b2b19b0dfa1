"""A small server of OpenAI's chat completions, as strict as OpenAI's own, whose model is a function."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from threading import Thread
from typing import Any

from aiohttp import web

Said = tuple[dict[str, Any], str]  # the message, without its role, and the finish reason
Model = Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], Said]
Reply = Callable[[], Awaitable[web.StreamResponse]]

# What OpenAI takes; anything else it refuses.
FIELDS = {
    *("model", "messages", "tools", "tool_choice", "temperature", "top_p", "seed", "stop", "logprobs"),
    *("max_tokens", "max_completion_tokens", "response_format", "presence_penalty"),
}


def calls(*asked: tuple[str, Any], content: str | None = None, prefix: str = "call") -> Said:
    """A message that calls these tools; arguments that are text stay as they are."""
    made = [
        {
            "id": f"{prefix}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": said if isinstance(said, str) else json.dumps(said)},
        }
        for number, (name, said) in enumerate(asked)
    ]
    return {"content": content, "tool_calls": made}, "tool_calls"


def says(text: str, reason: str = "stop", **more: Any) -> Said:
    return {"content": text, "refusal": None, "tool_calls": [], **more}, reason


class ChatServer:
    """Answers by `model`, or first with `replies`, one after the other; notes what it was sent in `bodies`.

    A token is four characters. A prompt's longest beginning of messages that it has seen is cached. An answer takes
    `answer_seconds`.
    """

    def __init__(self, model: Model = lambda messages, body: says("Yes."), *, tells_cached: bool = False) -> None:
        self.model = model
        self.tells_cached = tells_cached
        self.answer_seconds = 0.0
        self.replies: list[Reply] = []
        self.bodies: list[dict[str, Any]] = []
        self.key: str | None = None
        self.names = ["m"]
        self.context_tokens: int | None = 8000
        self.takes_tools = True
        self.is_up = True
        self._seen: set[str] = set()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not self.is_up:
            return web.Response(status=503)
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return refused("Incorrect API key provided", 401)
        response: web.StreamResponse = await handler(request)
        return response

    async def _models(self, request: web.Request) -> web.Response:
        length = {} if self.context_tokens is None else {"max_model_len": self.context_tokens}
        return web.json_response({"object": "list", "data": [{"id": name, **length} for name in self.names]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.replies:
            return await self.replies.pop(0)()
        problem = self._problem(body)
        if problem is not None:
            return problem
        await asyncio.sleep(self.answer_seconds)
        return web.json_response(self._answer(body))

    def _problem(self, body: Mapping[str, Any]) -> web.Response | None:
        if unknown := body.keys() - FIELDS:
            return refused(f"Unrecognized request argument supplied: {', '.join(sorted(unknown))}")
        if body.get("tools") and not self.takes_tools:
            return refused('"auto" tool choice requires --enable-auto-tool-choice')
        if body["model"] not in self.names:
            return refused(f"The model {body['model']} does not exist", 404, "model_not_found")
        if fault := history_fault(body["messages"]):
            return refused(fault)
        tokens = tokens_of(body["messages"])
        if self.context_tokens is not None and tokens > self.context_tokens:
            said = f"This model's maximum context length is {self.context_tokens} tokens, and yours are {tokens}"
            return refused(said, 400, "context_length_exceeded")
        return None

    def _answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        messages = body["messages"]
        message, reason = self.model(messages, body)
        begins = [messages[: length + 1] for length in range(len(messages))]
        cached = max((tokens_of(begin) for begin in begins if json.dumps(begin) in self._seen), default=0)
        self._seen.update(map(json.dumps, begins))
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if self.tells_cached else {}
        usage = {"prompt_tokens": tokens_of(messages), "completion_tokens": tokens_of([message]), **details}
        choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "x", "logprob": -0.5}] * usage["completion_tokens"]}
        return {"object": "chat.completion", "choices": [choice], "usage": usage}


def tokens_of(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(json.dumps(message)) // 4 + 1 for message in messages)


def history_fault(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """What OpenAI, and servers that render the calls by a template, refuse in a history."""
    awaited: list[str] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in awaited:
                return f"messages.{number}: no call has the id {message['tool_call_id']}"
            awaited.remove(message["tool_call_id"])
            continue
        if awaited:
            return f"messages.{number}: tool_calls must be followed by tool messages responding to: {awaited}"
        if message.get("tool_calls") == []:
            return f"messages.{number}.tool_calls: [] is too short"
        for call in message.get("tool_calls", ()):
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                return f"messages.{number}: arguments are no object"
            awaited.append(call["id"])
        if message["content"] is None and "tool_calls" not in message:
            return f"messages.{number}.content: null"
    return f"not answered: {awaited}" if awaited else None


def refused(message: str, status: int = 400, code: str | None = None) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"error": error}, status=status)


class ChatServing:
    """The server on a thread of its own, for commands that have an event loop, or a process, of their own."""

    def __init__(self, server: ChatServer) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)

    def __enter__(self) -> str:
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> str:
        self._runner = web.AppRunner(self._server.app(), shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"
