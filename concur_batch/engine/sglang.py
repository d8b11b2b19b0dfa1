"""Client of a SGLang server (0.5.x): token ids in, token ids out, over `/generate`.

aiohttp is used since httpx collapses above some 64 requests in flight.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import numpy as np
import orjson

from concur_batch.engine.metrics import make_reading
from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineError,
    EngineInfo,
    Generation,
    GenerationRequest,
    Reading,
    RequestRejected,
)

_READY_SECONDS = 1.0
_READ_TIMEOUT = aiohttp.ClientTimeout(total=10)
# What SGLang says when a prompt fits neither the context nor the pool (tokenizer_manager.py, managers/utils.py,
# scheduler.py of 0.5.23).
_OVERFLOW = ("longer than the model's context length", "exceeds the maximum allowed length", "KV memory budget",
             "exceeds the model's maximum context length")  # fmt: skip


class SglangEngine:
    """One SGLang server. Must be made on the event loop that uses it.

    `request_seconds` bounds one generation, its queueing in the engine included; `retries` is how often a failed one
    is sent again. Repeating is safe: a generation has no effect but its answer, and each try has a rid of its own, so
    that a late answer to an earlier try cannot be taken for this one's.
    """

    def __init__(self, url: str, request_seconds: float, retries: int, api_key: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=request_seconds, sock_connect=30)
        self._retries = retries
        self._asking: asyncio.Task[bool] | None = None
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # limit=0: thousands of agents have a request in flight; the engine queues them, not our pool.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers)

    async def probe(self, sampling: Mapping[str, Any]) -> EngineInfo:
        """Ask what it is, and generate one token with the workload's sampling parameters, so that what it refuses is
        known before any agent starts. Raises EngineError where it cannot be reached or is no SGLang."""
        info = await self._get_json("/server_info")
        # Some gauges appear with the first batch only: what is missing after one is really missing.
        await self.generate(GenerationRequest("probe", np.zeros(2, dtype=np.int32), 1, 0, sampling))
        reading = await self.read()
        states = info.get("internal_states") or [{}]
        pool = reading.pool_tokens or info.get("max_total_num_tokens") or states[0].get("max_total_num_tokens")
        names = {"locked_tokens": "KV usage", "evictable_tokens": "occupancy", "device_hit_tokens_total": "hit rate"}
        return EngineInfo(
            version=info.get("version"),
            pool_tokens=pool,
            page_size=int(info.get("page_size") or 1),
            context_tokens=info.get("context_length") or info.get("max_req_input_len"),
            missing_signals=tuple(name for field, name in names.items() if getattr(reading, field) is None),
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        tries = 0
        problem = ""
        deadline = time.monotonic() + (self._timeout.total or 0.0)
        while tries <= self._retries:
            rid = f"{request.rid}-{tries:02d}"
            try:
                answer = await self._post_generate(rid, request)
                return _generation(answer, tries + 1)
            except RequestRejected:
                raise
            except TimeoutError:
                problem = f"no answer within {self._timeout.total:.0f} s"
                await self._abort(rid)
            except asyncio.CancelledError:
                await asyncio.shield(self._abort(rid))
                raise
            except aiohttp.ClientConnectionError as error:
                # The engine is down or restarts: wait for it, for that is no fault of this request.
                problem = str(error) or type(error).__name__
                await self._until_ready(deadline)
            except (aiohttp.ClientError, EngineError, OSError) as error:
                problem = str(error) or type(error).__name__
            tries += 1
            # Full jitter, so that thousands of agents do not return to an engine at once.
            await asyncio.sleep(random.uniform(0, min(30.0, 0.5 * 2**tries)))
        raise EngineError(f"{self._url}: {problem} ({tries} tries)")

    async def _until_ready(self, deadline_seconds: float) -> None:
        """Wait until the server takes requests, or the deadline; all who wait share one question at a time."""
        while time.monotonic() < deadline_seconds:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask_ready())
            if await asyncio.shield(self._asking):
                return

    async def _ask_ready(self) -> bool:
        await asyncio.sleep(_READY_SECONDS)
        return await self.ready()

    async def read(self) -> Reading:
        """Read gauges and counters; raises EngineError where they cannot be had."""
        at_seconds = time.monotonic()
        metrics, loads = await asyncio.gather(self._get_text("/metrics"), self._get_text("/v1/loads?include=core"))
        try:
            return make_reading(metrics, None if loads is None else orjson.loads(loads), at_seconds)
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{self._url}: /metrics or /v1/loads is not as SGLang's: {error!r}") from None

    async def ready(self) -> bool:
        """Whether the server takes requests now; never raises for a server that is not there yet."""
        try:
            async with self._session.get(f"{self._url}/ready", timeout=_READ_TIMEOUT) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def close(self) -> None:
        await self._session.close()

    async def _post_generate(self, rid: str, request: GenerationRequest) -> Mapping[str, Any]:
        body = orjson.dumps(
            {
                "rid": rid,
                "input_ids": request.input_ids,
                "sampling_params": {
                    **request.sampling,
                    "max_new_tokens": request.max_new_tokens,
                    "sampling_seed": request.seed,
                },
                "return_logprob": request.logprobs,
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )
        headers = {"Content-Type": "application/json"}
        async with self._session.post(
            f"{self._url}/generate", data=body, headers=headers, timeout=self._timeout
        ) as response:
            text = await response.read()
            if response.status != 200:
                raise _failure(response.status, text.decode(errors="replace"))
        try:
            answer = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise EngineError(f"the answer is not JSON: {error}") from None
        if not isinstance(answer, dict) or "meta_info" not in answer or "output_ids" not in answer:
            raise EngineError("the answer holds no output_ids and meta_info")
        return answer

    async def _abort(self, rid: str) -> None:
        try:
            async with self._session.post(
                f"{self._url}/abort_request", json={"rid": rid}, timeout=_READ_TIMEOUT
            ) as response:
                await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # a server that does not answer has nothing to abort

    async def _get_text(self, path: str) -> str | None:
        try:
            async with self._session.get(f"{self._url}{path}", timeout=_READ_TIMEOUT) as response:
                if response.status not in (200, 404):
                    raise EngineError(f"{self._url}{path}: HTTP {response.status}")
                return await response.text() if response.status == 200 else None
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            raise EngineError(f"no server answers at {self._url} ({reason}): start it, or mend engine.url") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineError(f"{self._url}{path}: {str(error) or type(error).__name__}") from None

    async def _get_json(self, path: str) -> dict[str, Any]:
        text = await self._get_text(path)
        if text is None:
            raise EngineError(f"{self._url}{path} is not served: is this a SGLang server?")
        try:
            return dict(orjson.loads(text))
        except (ValueError, TypeError):
            raise EngineError(f"{self._url}{path} is no JSON object: is this a SGLang server?") from None


def _failure(status: int, text: str) -> EngineError:
    first_line = " ".join(text.split())[:300]
    if any(mark in text for mark in _OVERFLOW):
        return ContextOverflow(first_line)
    rejected = 400 <= status < 500 and status not in (408, 429)
    return (RequestRejected if rejected else EngineError)(f"HTTP {status}: {first_line}")


def _generation(answer: Mapping[str, Any], attempts: int) -> Generation:
    meta = answer["meta_info"]
    reason = meta.get("finish_reason") or {}
    kind = reason.get("type", "stop")
    if kind == "abort":
        raise _failure(reason.get("status_code") or 500, str(reason.get("message", "aborted")))
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
        retractions=int(meta.get("num_retractions") or 0),
        queue_seconds=queue,
        prefill_seconds=prefill,
        decode_seconds=latency - queue - prefill if None not in (latency, queue, prefill) else None,
        logprobs=[float(entry[0]) for entry in logprobs] if logprobs else None,
        attempts=attempts,
    )
