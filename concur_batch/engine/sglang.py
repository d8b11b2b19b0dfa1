"""Client of a SGLang server (0.5.x): token ids in, token ids out, over `/generate`.

aiohttp is used since httpx collapses above some 64 requests in flight.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import numpy as np
import orjson

from concur_batch.engine.metrics import make_readings
from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineDown,
    EngineError,
    EngineInfo,
    Generation,
    GenerationRequest,
    PoolOverflow,
    Reading,
    RequestRejected,
)

_READ_TIMEOUT = aiohttp.ClientTimeout(total=10)
# What SGLang says when a prompt fits neither the context nor the pool (tokenizer_manager.py, managers/utils.py,
# scheduler.py of 0.5.23).
_POOL_OVERFLOW = "KV memory budget"
_INPUT_LIMIT = re.compile(r"exceeds the maximum allowed length \((\d+) tokens\)")
_OVERFLOW = ("longer than the model's context length", "exceeds the maximum allowed length", _POOL_OVERFLOW,
             "exceeds the model's maximum context length")  # fmt: skip
# That limit is the smaller of context and pool, less what is kept for the output (tp_worker.py).
_KEPT_TOKENS = 6


class SglangEngine:
    """One SGLang server. Must be made on the event loop that uses it.

    `request_seconds` bounds one generation, its queueing in the engine included; `retries` is how often a failed one
    is sent again. Repeating is safe: a generation has no effect but its answer, and each try has a rid of its own, so
    that a late answer to an earlier try cannot be taken for this one's. A server that is down is not waited for here.
    """

    def __init__(self, url: str, request_seconds: float, retries: int, api_key: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=request_seconds, sock_connect=30)
        self._retries = retries
        self._serial = itertools.count()
        self._asking: asyncio.Task[bool] | None = None
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = self._connect()

    async def probe(self, sampling: Mapping[str, Any]) -> EngineInfo:
        """Ask what it is, and generate one token a dp rank with the workload's sampling parameters, so that what it
        refuses is known before any agent starts. Raises EngineError where it cannot be reached or is no SGLang."""
        info = await self._get_json("/server_info")
        ranks = tuple(range(int(info.get("dp_size") or 1)))
        prompt = np.zeros(2, dtype=np.int32)
        # Some gauges appear with the first batch only: what is missing after one is really missing.
        for rank in ranks:
            pinned = rank if len(ranks) > 1 else None
            await self.generate(GenerationRequest("probe", prompt, 1, 0, sampling, dp_rank=pinned))
        told = await self.read()
        readings = [told.get(rank, Reading(at_seconds=0.0)) for rank in ranks]
        states = info.get("internal_states") or [{}]
        fallback = info.get("max_total_num_tokens") or states[0].get("max_total_num_tokens")
        pools = tuple(reading.pool_tokens or fallback for reading in readings)
        names = {"locked_tokens": "KV usage", "evictable_tokens": "occupancy", "device_hit_tokens_total": "hit rate"}
        return EngineInfo(
            version=info.get("version"),
            pool_tokens=min((tokens for tokens in pools if tokens is not None), default=None),
            page_size=int(info.get("page_size") or 1),
            context_tokens=info.get("context_length") or await self._context_tokens() or info.get("max_req_input_len"),
            missing_signals=tuple(
                name for field, name in names.items() if any(getattr(reading, field) is None for reading in readings)
            ),
            dp_ranks=ranks,
            pool_tokens_by_rank=pools,
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        problem = ""
        for tries in range(1, self._retries + 2):
            if tries > 1:  # full jitter, so that thousands of agents do not return to an engine at once
                await asyncio.sleep(random.uniform(0, min(30.0, 0.5 * 2**tries)))
            rid = f"{request.rid}-{next(self._serial):08d}"
            try:
                return _generation(await self._post_generate(rid, request), tries)
            except ContextOverflow as error:
                if await self._is_of_pool(str(error)):
                    raise PoolOverflow(str(error)) from None
                raise
            except RequestRejected:
                raise
            except asyncio.CancelledError:
                await asyncio.shield(self._abort(rid))
                raise
            except (aiohttp.ClientError, EngineError) as error:
                problem = str(error) or type(error).__name__
            except TimeoutError:
                problem = f"no answer within {self._timeout.total:.0f} s"
                await self._abort(rid)
            except OSError as error:
                problem = str(error) or type(error).__name__
            # Whatever it looked like: where no request is taken now, another try would only be wasted.
            if not await self._is_up():
                raise EngineDown(f"{self._url} takes no requests: {problem}")
        raise EngineError(f"{self._url}: {problem} ({self._retries + 1} tries)")

    async def _is_up(self) -> bool:
        """`ready`, where all who ask at the same time share one question."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self.ready())
        return await asyncio.shield(self._asking)

    async def _is_of_pool(self, message: str) -> bool:
        """Whether a prompt was refused since it does not fit the pool, though it fits the model's context."""
        limit = _INPUT_LIMIT.search(message)
        if limit is None:
            return _POOL_OVERFLOW in message
        context_tokens = await self._context_tokens()
        return context_tokens is not None and int(limit[1]) + _KEPT_TOKENS < context_tokens

    async def _context_tokens(self) -> int | None:
        """The model's context; `/server_info` holds it only where the operator set it."""
        try:
            models = (await self._get_json("/v1/models")).get("data") or [{}]
            return int(models[0]["max_model_len"])
        except (EngineError, KeyError, TypeError, ValueError):
            return None

    async def read(self) -> dict[int, Reading]:
        """Gauges and counters of every dp rank's pool; raises EngineError where they cannot be had."""
        at_seconds = time.monotonic()
        try:
            metrics, loads = await asyncio.gather(self._get_text("/metrics"), self._get_text("/v1/loads?include=core"))
            return make_readings(metrics, None if loads is None else orjson.loads(loads), at_seconds)
        except (ValueError, ArithmeticError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(f"{self._url}: /metrics or /v1/loads is not as SGLang's: {error!r}") from None

    async def ready(self) -> bool:
        """Whether the server takes requests now; never raises for a server that is not there yet."""
        try:
            for path in ("/ready", "/health"):  # the former is missing in older versions
                async with self._session.get(f"{self._url}{path}", timeout=_READ_TIMEOUT) as response:
                    if response.status != 404:
                        return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        return False

    async def hang_up(self) -> None:
        """Break off all requests under way: they are taken for ones whose server is gone, and fail as such if it is."""
        session, self._session = self._session, self._connect()
        await session.close()

    async def close(self) -> None:
        await self._session.close()

    def _connect(self) -> aiohttp.ClientSession:
        # limit=0: thousands of agents have a request in flight; the engine queues them, not our pool.
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=self._headers)

    async def _post_generate(self, rid: str, request: GenerationRequest) -> Mapping[str, Any]:
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
        body = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
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
