"""The simulated server's answers beside those of the real SGLang: status, fields and kinds of events."""

import json
from typing import Any

import aiohttp
import pytest
from simulated_server import SLOW, served

MESSAGES = [{"role": "user", "content": "Hello"}]
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
IDS = list(range(1000, 1020))
SHORT = {"max_new_tokens": 4, "ignore_eos": True, "temperature": 0}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": ("/generate", {"input_ids": IDS, "sampling_params": SHORT}),
    "generated stream": ("/generate", {"input_ids": IDS, "sampling_params": SHORT, "stream": True}),
    "too long a stream": ("/generate", {"input_ids": IDS * 500, "sampling_params": SHORT, "stream": True}),
    "too long": ("/generate", {"input_ids": IDS * 500, "sampling_params": SHORT}),
    "completion": ("/v1/completions", {"prompt": "Once", "max_tokens": 4, "ignore_eos": True}),
    "completion by ids": ("/v1/completions", {"prompt": IDS, "max_tokens": 4, "ignore_eos": True}),
    "streamed completion": ("/v1/completions", {"prompt": "Once", "max_tokens": 4, "ignore_eos": True, **STREAM}),
    "empty completion": ("/v1/completions", {"prompt": ""}),
    "too long a completion": ("/v1/completions", {"prompt": IDS * 500, "stream": True}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "ignore_eos": True}),
    "streamed chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "ignore_eos": True, **STREAM}),
    "empty chat": ("/v1/chat/completions", {"messages": []}),
    "chat without its tool": ("/v1/chat/completions", {"messages": MESSAGES, "tool_choice": "required"}),
}


async def asked(session: aiohttp.ClientSession, url: str, name: str) -> tuple[int, list[Any]]:
    """Status, and the answer or the events."""
    path, body = ASKED[name]
    body = body if path == "/generate" else {"model": "any", **body}
    async with session.post(url + path, json=body) as response:
        text = await response.text()
        if response.content_type != "text/event-stream":
            return response.status, [json.loads(text)]
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
        return response.status, [line if line == "[DONE]" else json.loads(line) for line in lines]


def kind(event: Any) -> Any:
    """What an event is for. How many tokens come with one is the engine's affair."""
    if not isinstance(event, dict) or not event.get("choices"):
        return event if event == "[DONE]" else sorted(event)[:1]
    (choice,) = event["choices"]
    return sorted(event["choices"][0]), choice["finish_reason"], (choice.get("delta") or {}).get("role")


def strange(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Fields that the real answer does not have, and values of another type; null may be anything."""
    if theirs is None or ours is None:
        return []
    if type(ours) is not type(theirs) and not {type(ours), type(theirs)} <= {int, float}:
        return [f"{place}: {type(ours).__name__}, not {type(theirs).__name__}"]
    if isinstance(ours, dict):
        unknown = [f"{place}.{key}" for key in ours if key not in theirs and ours[key] is not None]
        return unknown + [s for key in ours if key in theirs for s in strange(ours[key], theirs[key], f"{place}.{key}")]
    if isinstance(ours, list) and ours and theirs:
        return strange(ours[0], theirs[0], f"{place}.0")
    return []


@pytest.mark.sglang
@pytest.mark.parametrize("name", ASKED)
async def test_answers_have_the_form_of_the_real_ones(real_sglang: str, name: str) -> None:
    async with served(SLOW) as url, aiohttp.ClientSession() as session:
        status, ours = await asked(session, url, name)
        real_status, theirs = await asked(session, real_sglang, name)
    assert status == real_status, theirs
    kinds, real_kinds = ([kind(event) for event in events] for events in (ours, theirs))
    assert [k for n, k in enumerate(kinds) if k not in kinds[:n]] == [
        k for n, k in enumerate(real_kinds) if k not in real_kinds[:n]
    ]
    for event, real in ((ours[0], theirs[0]), (ours[-1], theirs[-1]), *zip(ours[-2:], theirs[-2:], strict=True)):
        assert strange(event, real) == []
