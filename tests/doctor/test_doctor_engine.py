"""`concur doctor` before real HTTP servers: one that tells everything, and ones that lack or freeze each signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.doctor.engine import check_context, describe, inspect_engine
from concur_batch.doctor.finding import Finding
from concur_batch.engine.pools import EngineKind
from concur_batch.engine.protocol import EngineInfo
from tests.doctor.doctor_servers import (
    MODEL,
    Fault,
    Handler,
    Vllm,
    altered,
    answering,
    frozen,
    serving,
    simulated,
    unserved,
)

TOKENIZER = load_tokenizer(MODEL)
SIGNALS = ["cached tokens", "hit counters", "locked tokens", "evictable tokens", "running requests", "time stamps"]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concur_batch.doctor.engine._SETTLE_SECONDS", 0.3)


async def examine(url: str, kind: EngineKind | None = None, **sampling: Any) -> list[Finding]:
    return [finding async for finding in inspect_engine(url, kind, None, sampling, TOKENIZER)]


def faults(findings: list[Finding]) -> dict[str, str]:
    """What is not ok: the verdict by name."""
    assert all(bool(finding.mend) == (finding.verdict != "ok") for finding in findings)
    return {finding.name: finding.verdict for finding in findings if finding.verdict != "ok"}


def seen(findings: list[Finding], name: str) -> str:
    (found,) = (finding for finding in findings if finding.name == name)
    return found.seen


async def test_a_server_that_tells_everything_is_ok() -> None:
    async with simulated() as url:
        findings = await examine(url)
    assert faults(findings) == {}
    names = ["ready", "generation", "version", "pool", "context", *SIGNALS, "same tokenizer"]
    assert [finding.name for finding in findings] == names
    assert seen(findings, "cached tokens") == "a repeated prompt hit 64 of 65 tokens"
    assert seen(findings, "pool") == "20000 tokens, pages of 1"


async def test_long_pages_are_hit_whole() -> None:
    async with simulated(page_size=128) as url:
        findings = await examine(url)
    assert faults(findings) == {}
    assert seen(findings, "cached tokens") == "a repeated prompt hit 256 of 257 tokens"


async def test_every_rank_is_tried() -> None:
    async with simulated(dp_size=2) as url:
        findings = await examine(url)
    assert faults(findings) == {}
    assert [f.name for f in findings[5:-1]] == [f"rank {rank}: {name}" for rank in range(2) for name in SIGNALS]


async def bos(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A server with `/tokenize`, which has a BOS of its own."""
    if request.path != "/tokenize":
        return await handler(request)
    return web.json_response({"tokens": [1, *TOKENIZER.encode((await request.json())["prompt"])]})


async def other_ids(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path != "/tokenize":
        return await handler(request)
    return web.json_response({"tokens": [9 for _ in TOKENIZER.encode((await request.json())["prompt"])]})


def uncached(request: Mapping[str, Any], meta: dict[str, Any]) -> None:
    meta.update(cached_tokens=0, cached_tokens_details={"device": 0, "host": 0})


def always_cached(request: Mapping[str, Any], meta: dict[str, Any]) -> None:
    meta["cached_tokens"] = 32


def more_tokens(request: Mapping[str, Any], meta: dict[str, Any]) -> None:
    meta["prompt_tokens"] += 2 if "text" in request else 0


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (unserved("/metrics"), {"hit counters": "failure", "evictable tokens": "warning"}),
        (unserved("/v1/loads"), {"time stamps": "warning"}),
        (
            unserved("/metrics", "/v1/loads"),
            {"hit counters": "failure", "locked tokens": "failure", "evictable tokens": "warning",
             "running requests": "warning", "time stamps": "warning"},
        ),
        # The first is the probe's own reading, the second the one at rest.
        (frozen("/metrics", since=2), {"hit counters": "failure"}),
        (
            frozen("/v1/loads", since=2),
            {"locked tokens": "failure", "running requests": "failure", "time stamps": "failure"},
        ),
        (altered(uncached), {"cached tokens": "failure"}),
        (altered(always_cached), {"cached tokens": "failure"}),
        (altered(more_tokens), {"same tokenizer": "failure"}),
        (other_ids, {"same tokenizer": "failure"}),
        (answering("/tokenize", 500, None), {"same tokenizer": "warning"}),
        (answering("/tokenize", 200, []), {"same tokenizer": "warning"}),
        (bos, {}),
    ],
    ids=["no metrics", "no loads", "no signals", "metrics frozen", "loads frozen", "nothing cached",
         "cached tokens stand still", "more tokens", "other ids", "tokenize fails", "tokenize says nothing", "bos"],
)  # fmt: skip
async def test_what_a_server_lacks_is_told(fault: Fault, expected: dict[str, str]) -> None:
    async with simulated(fault) as url:
        assert faults(await examine(url)) == expected


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (answering("/ready", 503, None), "ready"),
        (answering("/generate", 500, None), "generation"),
        (unserved("/server_info", "/v1/models"), "reachable"),
    ],
    ids=["not ready", "no generation", "another server"],
)
async def test_nothing_more_is_asked_of_a_server_that_does_not_serve(fault: Fault, name: str) -> None:
    async with simulated(fault) as url:
        findings = await examine(url)
    assert faults(findings) == {name: "failure"}
    assert findings[-1].name == name


async def test_signals_that_are_no_sglangs_are_a_failure_and_not_a_crash() -> None:
    asked = 0

    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal asked
        asked += request.path == "/v1/loads"
        broken = request.path == "/v1/loads" and asked > 3
        return web.json_response({"loads": [{"dp_rank": 0}]}) if broken else await handler(request)

    async with simulated(fault) as url:
        assert faults(await examine(url)) == {"signals": "failure"}


async def test_refused_sampling_names_the_sampling() -> None:
    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        body = await request.json() if request.path == "/generate" else {}
        refused = "min_p" in body.get("sampling_params", {})
        return web.Response(status=400, text="min_p?") if refused else await handler(request)

    async with simulated(fault) as url:
        findings = await examine(url, min_p=2)
        assert faults(await examine(url)) == {}
    assert faults(findings) == {"generation": "failure"}
    assert findings[-1].mend == "mend model.sampling"


async def test_nobody_at_the_address() -> None:
    async with simulated() as url:
        pass
    assert faults(await examine(url)) == {"reachable": "failure"}
    assert faults(await examine(url, "vllm")) == {"ready": "failure"}


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ({}, {}),
        ({"tells_cached": False}, {"cached tokens": "failure"}),
        ({"caches": False}, {"cached tokens": "failure", "hit counters": "failure"}),
        (
            {"tells_metrics": False},
            {"pool": "failure", "hit counters": "failure", "locked tokens": "failure", "running requests": "warning"},
        ),
    ],
    ids=["all", "cached tokens", "cache", "metrics"],
)
async def test_vllm_is_found_out_and_examined(lacks: dict[str, bool], expected: dict[str, str]) -> None:
    async with serving(Vllm(**lacks).app) as url:
        findings = await examine(url)
    # It serves no /tokenize, and no /generate either.
    assert faults(findings) == {**expected, "same tokenizer": "warning"}
    assert seen(findings, "version") == "vLLM 0.32.0"
    if "tells_cached" in lacks:
        assert "--enable-prompt-tokens-details" in next(f.mend for f in findings if f.name == "cached tokens")


def test_what_a_probe_found_is_judged() -> None:
    def verdicts(**fields: Any) -> list[str]:
        info = EngineInfo(**{"version": "0.5.23", "pool_tokens": 9000, "page_size": 1, "context_tokens": 4096,
                             "pool_tokens_by_rank": (9000,), **fields})  # fmt: skip
        return [finding.verdict for finding in describe(info, "sglang", "SGLang")]

    assert verdicts() == ["ok", "ok", "ok"]
    assert verdicts(version="0.4.9") == verdicts(version=None) == ["warning", "ok", "ok"]
    assert verdicts(pool_tokens=None, pool_tokens_by_rank=(None,)) == ["ok", "failure", "ok"]
    assert verdicts(pool_tokens_by_rank=(9000, None)) == ["ok", "failure", "ok"]
    assert verdicts(context_tokens=None) == ["ok", "ok", "warning"]
    assert verdicts(context_tokens=9001) == ["ok", "ok", "warning"]
    assert verdicts(context_tokens=9000) == ["ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("context", "pool", "limit", "verdict", "seen"),
    [
        (8192, 9000, None, "ok", "8192 tokens"),
        (8192, 9000, 8192, "ok", "8192 tokens, of which a history takes 8192 at most"),
        (8192, 9000, 8193, "warning", "8192 tokens, where agent.limits.context_tokens is 8193: histories end there"),
        (8192, 3072, None, "warning", "8192 tokens, more than a pool of 3072 holds"),
        (8192, 3072, 3072, "ok", "8192 tokens, of which a history takes 3072 at most"),
        (
            8192,
            3072,
            3073,
            "warning",
            "8192 tokens, of which a history takes 3073 at most, more than a pool of 3072 holds",
        ),
        (None, 3072, 3072, "ok", "? tokens, of which a history takes 3072 at most"),
        (None, None, None, "warning", "its length is not told"),
    ],
)
def test_how_long_a_history_may_grow(
    context: int | None, pool: int | None, limit: int | None, verdict: str, seen: str
) -> None:
    finding = check_context(context, pool, limit)
    assert (finding.verdict, finding.seen) == (verdict, seen)
