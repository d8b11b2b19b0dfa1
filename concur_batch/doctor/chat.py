"""Asks a server of chat completions what little it tells."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np

from concur_batch.agent.tokenizer import Tokenizer
from concur_batch.doctor.finding import Finding, failure, ok, warning
from concur_batch.doctor.trial import TELL_CACHED, cached_tokens
from concur_batch.engine.openai import OpenaiEngine
from concur_batch.engine.protocol import Chat, EngineError, Generation, GenerationRequest, RequestRejected

# Longer than the blocks in which servers cache, and than the 1,024 tokens below which OpenAI caches nothing.
_PROMPT_WORDS = 1500
_TOOL = {
    "type": "function",
    "function": {
        "name": "submit",
        "description": "Submit the answer.",
        "parameters": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    },
}


async def inspect_chat(
    client: OpenaiEngine, sampling: Mapping[str, Any], tokenizer: Tokenizer | None
) -> AsyncIterator[Finding]:
    """Every check of such a server; a warning where it tells less than a run could use."""
    try:
        served = await client.models()
        client.model = client.model or next(iter(served), "")
        info = await client.probe(sampling)
    except EngineError as error:
        mend = "mend model.sampling" if isinstance(error, RequestRejected) else "see the server's log, or mend the name"
        yield failure("generation", str(error), mend)
        return
    yield ok("generation", f"one token made by {client.model!r}")
    yield _context(info.context_tokens)
    yield await _tools(client, sampling)
    words = [{"role": "user", "content": " ".join(str(random.randrange(10)) for _ in range(_PROMPT_WORDS))}]
    try:
        first = await _ask(client, words, sampling)
        yield _cached(first, await _ask(client, words, sampling))
    except EngineError as error:
        yield warning("cached tokens", f"a longer prompt failed: {error}", "see the server's log")
        return
    yield warning(
        "signals",
        "none: no KV usage, no hit counters",
        "set engine.pool_tokens, if you know the KV pool's size: U is then estimated; or a cap as control.policy",
    )
    if tokenizer is not None:
        yield _compare_prompt(first.input_tokens, len(tokenizer.encode_prompt(words, None)))


def _context(tokens: int | None) -> Finding:
    if tokens is None:
        return warning("context", "its length is not told", "set agent.limits.context_tokens")
    return ok("context", f"{tokens} tokens")


async def _tools(client: OpenaiEngine, sampling: Mapping[str, Any]) -> Finding:
    try:
        await client.probe(sampling, [_TOOL])
    except EngineError as error:
        mend = "start it with a parser of tool calls, or take react or bash as agent.format"
        return warning("tools", f"refused: {error}", mend)
    return ok("tools", "may be offered")


async def _ask(client: OpenaiEngine, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> Generation:
    empty = np.empty(0, dtype=np.int32)
    return await client.generate(GenerationRequest("doctor", empty, 1, 0, sampling, chat=Chat(messages)))


def _cached(first: Generation, second: Generation) -> Finding:
    """Where they are not told, a run works, without a hit rate."""
    if first.cached_device_tokens is None or second.cached_device_tokens is None:
        return warning("cached tokens", "not told: there is no hit rate, and no cut by it", TELL_CACHED["openai"])
    return cached_tokens(first, second, "openai")


def _compare_prompt(theirs: int, ours: int) -> Finding:
    name, seen = "same tokenizer", f"a prompt has {theirs} tokens by the server, {ours} by our tokenizer and template"
    if theirs == ours:
        return ok(name, seen)
    return warning(
        name, seen, "give the served model's own directory: ids and lengths of histories are estimated by it"
    )
