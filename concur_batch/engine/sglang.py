"""Client of a SGLang server (0.5.x): token ids in, token ids out, over `/generate`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from concur_batch.engine.http import READ_TIMEOUT, HttpEngine, failure, missing_signals, parse_answer
from concur_batch.engine.metrics import make_readings
from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineError,
    EngineInfo,
    Generation,
    GenerationRequest,
    PoolOverflow,
    Reading,
)

# What SGLang says when a prompt fits neither the context nor the pool (tokenizer_manager.py, managers/utils.py,
# scheduler.py of 0.5.23).
_POOL_OVERFLOW = "KV memory budget"
_INPUT_LIMIT = re.compile(r"exceeds the maximum allowed length \((\d+) tokens\)")
_OVERFLOW = ("longer than the model's context length", "exceeds the maximum allowed length", _POOL_OVERFLOW,
             "exceeds the model's maximum context length")  # fmt: skip
# That limit is the smaller of context and pool, less what is kept for the output (tp_worker.py).
_KEPT_TOKENS = 6


class SglangEngine(HttpEngine):
    """One SGLang server."""

    server = "SGLang"
    health_paths = ("/ready", "/health")  # the former is missing in older versions

    def __init__(self, url: str, request_seconds: float, retries: int, api_key: str | None = None) -> None:
        super().__init__(url, request_seconds, retries, api_key)
        self._open_sessions: set[str] = set()

    async def probe(self, sampling: Mapping[str, Any]) -> EngineInfo:
        """Ask what it is, and generate one token a dp rank with the workload's sampling parameters, so that what it
        refuses is known before any agent starts. Raises EngineError where it cannot be reached or is no SGLang."""
        info = await self._get_json("/server_info")
        # Only one of them is above 1; the latter counts the ranks of data-parallel attention since 0.5.23.
        ranks = tuple(range(max(int(info.get(name) or 1) for name in ("dp_size", "attn_dp_size"))))
        await self._wake(ranks, sampling)
        told = await self.read()  # what is missing now is really missing
        readings = [told.get(rank, Reading(at_seconds=0.0)) for rank in ranks]
        states = info.get("internal_states") or [{}]
        fallback = info.get("max_total_num_tokens") or states[0].get("max_total_num_tokens")
        pools = tuple(reading.pool_tokens or fallback for reading in readings)
        return EngineInfo(
            version=info.get("version"),
            pool_tokens=min((tokens for tokens in pools if tokens is not None), default=None),
            page_size=int(info.get("page_size") or 1),
            context_tokens=info.get("context_length") or await self._context_tokens() or info.get("max_req_input_len"),
            missing_signals=missing_signals(readings),
            dp_ranks=ranks,
            pool_tokens_by_rank=pools,
        )

    async def _is_of_pool(self, message: str) -> bool:
        """Whether a prompt was refused since it does not fit the pool, though it fits the model's context."""
        limit = _INPUT_LIMIT.search(message)
        if limit is None:
            return _POOL_OVERFLOW in message
        context_tokens = await self._context_tokens()
        return context_tokens is not None and int(limit[1]) + _KEPT_TOKENS < context_tokens

    async def read(self) -> dict[int, Reading]:
        """Gauges and counters of every dp rank's pool; raises EngineError where they cannot be had."""
        at_seconds = time.monotonic()
        try:
            metrics, loads = await asyncio.gather(self._get_text("/metrics"), self._get_text("/v1/loads?include=core"))
            return make_readings(metrics, None if loads is None else orjson.loads(loads), at_seconds)
        except (ValueError, ArithmeticError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(f"{self._url}: /metrics or /v1/loads is not as SGLang's: {error!r}") from None

    async def _try(self, rid: str, request: GenerationRequest, tries: int) -> Generation:
        fields: dict[str, Any] = {
            "rid": rid,
            "input_ids": request.input_ids,
            "sampling_params": {
                **request.sampling,
                "max_new_tokens": request.max_new_tokens,
                "sampling_seed": request.seed,
            },
            "return_logprob": request.logprobs,
        }
        if request.dp_rank is not None:
            fields["routed_dp_rank"] = request.dp_rank
        if request.priority is not None:
            fields["priority"] = request.priority
        if request.session is not None:
            fields["session_id"] = request.session
            self._open_sessions.add(request.session)
        status, text = await self._post("/generate", fields, {})
        try:
            if status != 200:
                raise failure(status, text.decode(errors="replace"), _OVERFLOW)
            answer = parse_answer(text)
            if "meta_info" not in answer or "output_ids" not in answer:
                raise EngineError("the answer holds no output_ids and meta_info")
            return _generation(answer, tries)
        except ContextOverflow as error:
            if await self._is_of_pool(str(error)):
                raise PoolOverflow(str(error)) from None
            raise

    async def end_session(self, session: str) -> None:
        """Its prefix is evicted like any other from now on."""
        if session in self._open_sessions:
            self._open_sessions.remove(session)
            await self._tell("/close_session", {"session_id": session})

    async def _abort(self, rid: str) -> None:
        await self._tell("/abort_request", {"rid": rid})

    async def _tell(self, path: str, fields: Mapping[str, Any]) -> None:
        try:
            async with self._session.post(f"{self._url}{path}", json=fields, timeout=READ_TIMEOUT) as response:
                await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # a server that does not answer has nothing left to abort or to keep


def _generation(answer: Mapping[str, Any], attempts: int) -> Generation:
    meta = answer["meta_info"]
    reason = meta.get("finish_reason") or {}
    kind = reason.get("type", "stop")
    if kind == "abort":
        raise failure(reason.get("status_code") or 500, str(reason.get("message", "aborted")), _OVERFLOW)
    tiers = meta.get("cached_tokens_details") or {}
    host, storage = int(tiers.get("host") or 0), int(tiers.get("storage") or 0)
    logprobs = meta.get("output_token_logprobs")
    started, prefilled = meta.get("forward_entry_time"), meta.get("prefill_finished_time")
    latency = meta.get("e2e_latency")
    queue = meta.get("queue_time")
    prefill = prefilled - started if prefilled and started else None
    return Generation(
        output_ids=answer["output_ids"],
        finish_reason="length" if kind == "length" else "stop",
        input_tokens=int(meta["prompt_tokens"]),
        cached_device_tokens=int(meta.get("cached_tokens") or 0) - host - storage,
        cached_host_tokens=host,
        cached_storage_tokens=storage,
        retractions=meta.get("num_retractions"),
        queue_seconds=queue,
        prefill_seconds=prefill,
        decode_seconds=latency - queue - prefill if None not in (latency, queue, prefill) else None,
        logprobs=[float(entry[0]) for entry in logprobs] if logprobs else None,
        attempts=attempts,
    )
