"""Asks a server that runs what it is, sends it a few small requests, and has what came of them judged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import numpy as np

from concur_batch.agent.tokenizer import Tokenizer
from concur_batch.doctor.chat import inspect_chat
from concur_batch.doctor.finding import Finding, failure, ok, warning
from concur_batch.doctor.tokenizer import compare_counts, compare_ids, probe_texts
from concur_batch.doctor.trial import Trial, judge
from concur_batch.engine.clients import connect
from concur_batch.engine.http import READ_TIMEOUT
from concur_batch.engine.openai import OpenaiEngine
from concur_batch.engine.pools import EngineKind
from concur_batch.engine.protocol import (
    EngineError,
    EngineInfo,
    GenerationRequest,
    Reading,
    RequestRejected,
    TokenIds,
)
from concur_batch.engine.sglang import SglangEngine
from concur_batch.engine.vllm import VllmEngine

_Client = SglangEngine | VllmEngine
# By which path each is known: its version, and last what all of them serve. vLLM's comes first, since in its
# development mode it serves SGLang's as well.
_PATHS: dict[EngineKind, str] = {"vllm": "/version", "sglang": "/server_info", "openai": "/v1/models"}
# What the clients were written against, by the beginning of the version.
_KNOWN_VERSIONS: dict[EngineKind, tuple[str, ...]] = {"sglang": ("0.5.", "simulated"), "vllm": ("0.32.",)}
_REQUEST_SECONDS = 300
_PREFIX_TOKENS = 64
# SGLang refreshes its gauges every 15 to 40 decode steps; a model on the CPU makes so many in some ten seconds.
_OUTPUT_TOKENS = 96
_POLL_SECONDS = 0.02
# Counters follow within a step, gauges of an idle server within seconds.
_SETTLE_SECONDS = 10.0
# Ordinary tokens in any vocabulary; random, so that no earlier prompt has the same prefix.
_TOKEN_RANGE = (300, 1000)
_GREEDY: Mapping[str, Any] = {"temperature": 0.0, "ignore_eos": True}


async def inspect_engine(
    url: str,
    kind: EngineKind | None,
    api_key: str | None,
    sampling: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    limit_tokens: int | None = None,
    model: str = "",
) -> AsyncIterator[Finding]:
    """Every check of a server, each as it is made; those that a failure makes pointless are left out.

    `kind` None finds it out. `sampling` are the parameters that a run would send, `limit_tokens` how long its histories
    may grow. With a tokenizer, the server's own is compared with it. `model` is what a server that takes messages is
    asked for, the first it serves unless it is given. Takes seconds on a GPU, half a minute on a CPU.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with aiohttp.ClientSession(headers=headers, timeout=READ_TIMEOUT) as session:
        found = kind or await _find_kind(session, url)
        if isinstance(found, Finding):
            yield found
            return
        client = connect(found, url, _REQUEST_SECONDS, 0, api_key, model)
        try:
            if isinstance(client, OpenaiEngine):
                async for finding in inspect_chat(client, sampling, tokenizer):
                    yield finding
                return
            async for finding in _inspect(client, found, sampling, limit_tokens):
                yield finding
                if finding.name in ("ready", "generation") and finding.verdict == "failure":
                    return
            if tokenizer is not None:
                yield await _compare_tokenizer(session, url, tokenizer)
        finally:
            await client.close()


async def _find_kind(session: aiohttp.ClientSession, url: str) -> EngineKind | Finding:
    try:
        base = url.removesuffix("/v1")
        for kind, path in _PATHS.items():
            async with session.get(f"{base}{path}") as response:
                if response.status == 200:
                    return kind
                status = response.status
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return failure("reachable", f"no server answers: {str(error) or 'no answer'}", "start it, or mend the URL")
    return failure(
        "reachable",
        f"neither {' nor '.join(_PATHS.values())} is served (HTTP {status})",
        "give the URL of the server itself; if it asks for a key, name it as engine.api_key in a workload",
    )


async def _inspect(
    client: _Client, kind: EngineKind, sampling: Mapping[str, Any], limit_tokens: int | None
) -> AsyncIterator[Finding]:
    if not await client.ready():
        yield failure("ready", "the server takes no requests", "wait until it has loaded the model, or start it")
        return
    yield ok("ready", "takes requests")
    try:
        info = await client.probe(sampling)
    except EngineError as error:
        mend = "mend model.sampling" if isinstance(error, RequestRejected) else "see the server's log, or mend --kind"
        yield failure("generation", str(error), mend)
        return
    yield ok("generation", "one token made")
    for finding in describe(info, kind, client.server, limit_tokens):
        yield finding
    for rank in info.dp_ranks:
        several = len(info.dp_ranks) > 1
        try:
            trial = await _try_pool(client, rank, rank if several else None, info.page_size)
        except EngineError as error:
            yield failure("signals", str(error), "see the server's log")
            continue
        for finding in judge(trial, kind):
            name = f"rank {rank}: {finding.name}" if several else finding.name
            yield Finding(name, finding.verdict, finding.seen, finding.mend)


def describe(info: EngineInfo, kind: EngineKind, server: str, limit_tokens: int | None = None) -> list[Finding]:
    """What the probe says of version, pool and context; `server` is its name."""
    known = info.version is not None and info.version.startswith(_KNOWN_VERSIONS[kind])
    seen = f"{server} {info.version or 'of unknown version'}"
    written_for = f"concur was written for {_KNOWN_VERSIONS[kind][0]}x: trust it where the checks below are ok"
    pool = [str(tokens) if tokens is not None else "?" for tokens in info.pool_tokens_by_rank]
    size = f"{' + '.join(pool)} tokens, pages of {info.page_size}"
    told = None not in info.pool_tokens_by_rank
    return [
        ok("version", seen) if known else warning("version", seen, written_for),
        ok("pool", size) if told else failure("pool", f"its size is not told: {size}", "start the server with metrics"),
        check_context(info.context_tokens, info.pool_tokens, limit_tokens),
    ]


def check_context(context_tokens: int | None, pool_tokens: int | None, limit_tokens: int | None) -> Finding:
    """How long a history may grow: by the model's context, and by the workload's `agent.limits.context_tokens`, which
    the context bounds and which any pool should hold."""
    name, known = "context", [tokens for tokens in (context_tokens, limit_tokens) if tokens is not None]
    if not known:
        return warning(name, "its length is not told", "set agent.limits.context_tokens")
    if context_tokens is not None and limit_tokens is not None and limit_tokens > context_tokens:
        seen = f"{context_tokens} tokens, where agent.limits.context_tokens is {limit_tokens}: histories end there"
        return warning(name, seen, "lower that limit, or start the server with a longer context")
    seen = f"{context_tokens or '?'} tokens"
    if limit_tokens is not None:
        seen += f", of which a history takes {limit_tokens} at most"
    if pool_tokens is not None and pool_tokens < min(known):
        mend = "give the server more memory, or set agent.limits.context_tokens below the pool"
        return warning(name, f"{seen}, more than a pool of {pool_tokens} holds", mend)
    return ok(name, seen)


async def _try_pool(client: _Client, rank: int, pinned: int | None, page_size: int) -> Trial:
    # Only whole pages are cached, and never a prompt's last token.
    length = max(2, -(-_PREFIX_TOKENS // page_size)) * page_size + 1

    async def read() -> Reading:
        return (await client.read()).get(rank, Reading(at_seconds=0.0))

    def request(prompt: TokenIds, tokens: int) -> GenerationRequest:
        return GenerationRequest("doctor", prompt, tokens, 0, _GREEDY, dp_rank=pinned)

    before = await read()
    prompt = _random_prompt(length)
    first = await client.generate(request(prompt, 1))
    second = await client.generate(request(prompt, 1))
    hits = (before.device_hit_tokens_total or 0) + (second.cached_device_tokens or 0)
    counted = await _settled(
        read, lambda reading: reading.device_hit_tokens_total is None or reading.device_hit_tokens_total >= hits
    )
    longer = asyncio.create_task(client.generate(request(_random_prompt(length), _OUTPUT_TOKENS)))
    during: list[Reading] = []
    try:
        while not longer.done():
            during.append(await read())
            await asyncio.wait([longer], timeout=_POLL_SECONDS)
        await longer
    finally:
        longer.cancel()
    peak = max((reading.locked_tokens or 0 for reading in during), default=0)
    after = await _settled(read, lambda reading: (reading.locked_tokens or 0) < peak or peak == 0)
    return Trial(before, first, second, counted, tuple(during), after)


async def _settled(read: Callable[[], Awaitable[Reading]], settled: Callable[[Reading], bool]) -> Reading:
    """The first reading that is as it should be, or the last one within the time."""
    deadline = asyncio.get_running_loop().time() + _SETTLE_SECONDS
    while True:
        reading = await read()
        if settled(reading) or asyncio.get_running_loop().time() > deadline:
            return reading
        await asyncio.sleep(_POLL_SECONDS)


def _random_prompt(tokens: int) -> TokenIds:
    return np.array([random.randrange(*_TOKEN_RANGE) for _ in range(tokens)], dtype=np.int32)


async def _compare_tokenizer(session: aiohttp.ClientSession, url: str, tokenizer: Tokenizer) -> Finding:
    texts = probe_texts(tokenizer)
    try:
        ids = [await _tokenize(session, url, text) for text, _ in texts]
        told = [tokens for tokens in ids if tokens is not None]
        if len(told) == len(texts):
            return compare_ids(texts, told)
        return compare_counts(texts, [await _count(session, url, text) for text, _ in texts])
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
        reason = str(error) or type(error).__name__
        return warning("same tokenizer", f"cannot be asked: {reason}", "compare the model's directories by hand")


async def _tokenize(session: aiohttp.ClientSession, url: str, text: str) -> list[int] | None:
    """The server's ids of a text; None where it serves no `/tokenize`."""
    async with session.post(f"{url}/tokenize", json={"prompt": text, "add_special_tokens": False}) as response:
        if response.status in (404, 405):
            return None
        response.raise_for_status()
        return [int(token) for token in (await response.json())["tokens"]]


async def _count(session: aiohttp.ClientSession, url: str, text: str) -> int:
    """How many tokens SGLang makes of a text: it generates one from it."""
    body = {"text": text, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    async with session.post(f"{url}/generate", json=body) as response:
        response.raise_for_status()
        return int((await response.json())["meta_info"]["prompt_tokens"])
