"""Client of a vLLM server (0.32): token ids in, token ids out, over `/v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from concur_batch.engine.http import HttpEngine, error_text, failure, missing_signals, parse_answer
from concur_batch.engine.protocol import EngineError, EngineInfo, Generation, GenerationRequest, Reading
from concur_batch.engine.vllm_metrics import VllmPool, make_vllm_pools

# What vLLM says of a prompt that does not fit the context (renderers/params.py of 0.32.0), and of one that fills it to
# the last token (sampling_params.py), where no room is left for an output. A prompt that fits the context fits the
# pool: vLLM does not start with a pool that cannot hold one full context.
_OVERFLOW = ("This model's maximum context length is", "max_tokens must be at least 1, got 0")


class VllmEngine(HttpEngine):
    """One vLLM server, started with `--enable-prompt-tokens-details`, without which no request tells its cached tokens.

    An output that would exceed the context is cut there and ends by "length". vLLM drops a request when its
    connection is closed, so that a cancelled or timed out call needs no other abort. Times are told with
    `--enable-per-request-metrics` only; preemptions and the tier of a hit never.
    """

    server = "vLLM"
    health_paths = ("/health",)

    async def probe(self, sampling: Mapping[str, Any]) -> EngineInfo:
        """Ask what it is, and generate one token a dp rank with the workload's sampling parameters, so that what it
        refuses is known before any agent starts. Raises EngineError where it cannot be reached or is no vLLM."""
        version = (await self._get_json("/version")).get("version")
        ranks = tuple(await self.read())
        woken = await self._wake(ranks, sampling)
        told = await self._pools()  # what is missing now is really missing
        pools = [told.get(rank, VllmPool(Reading(at_seconds=0.0), None)) for rank in ranks]
        sizes = tuple(pool.reading.pool_tokens for pool in pools)
        missing = missing_signals(pool.reading for pool in pools)
        return EngineInfo(
            version=version,
            pool_tokens=min((tokens for tokens in sizes if tokens is not None), default=None),
            page_size=max(pool.block_tokens or 1 for pool in pools),
            context_tokens=await self._context_tokens(),
            missing_signals=missing + (("cached tokens",) if woken[0].cached_device_tokens is None else ()),
            dp_ranks=ranks,
            pool_tokens_by_rank=sizes,
        )

    async def read(self) -> dict[int, Reading]:
        """Gauges and counters of every dp rank's pool; raises EngineError where they cannot be had."""
        return {rank: pool.reading for rank, pool in (await self._pools()).items()}

    async def _pools(self) -> dict[int, VllmPool]:
        at_seconds = time.monotonic()
        try:
            return make_vllm_pools(await self._get_text("/metrics") or "", at_seconds)
        except (ValueError, ArithmeticError, KeyError) as error:
            raise EngineError(f"{self._url}: /metrics is not as vLLM's: {error!r}") from None

    async def _try(self, rid: str, request: GenerationRequest, tries: int) -> Generation:
        fields: dict[str, Any] = {
            **request.sampling,
            "request_id": rid,
            "prompt": request.input_ids,
            "max_tokens": request.max_new_tokens,
            "seed": request.seed,
            "return_token_ids": True,
        }
        if request.logprobs:
            fields["logprobs"] = 0  # of the sampled tokens and no others
        # A request without the rank goes to the one with the shortest queue.
        headers = {} if request.dp_rank is None else {"X-data-parallel-rank": str(request.dp_rank)}
        status, text = await self._post("/v1/completions", fields, headers)
        if status != 200:
            raise failure(status, error_text(text), _OVERFLOW)
        try:
            return _generation(parse_answer(text), tries)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"the answer is not as vLLM's: {error!r}") from None


def _generation(answer: Mapping[str, Any], tries: int) -> Generation:
    choice, usage, times = answer["choices"][0], answer["usage"], answer.get("metrics") or {}
    if choice["finish_reason"] == "abort":
        raise EngineError("the engine aborted the request")
    logprobs, details = choice.get("logprobs"), usage.get("prompt_tokens_details")
    return Generation(
        output_ids=list(choice["token_ids"]),
        finish_reason="length" if choice["finish_reason"] == "length" else "stop",
        input_tokens=int(usage["prompt_tokens"]),
        cached_device_tokens=None if details is None else int(details.get("cached_tokens") or 0),
        queue_seconds=_seconds(times.get("queue_time_ms")),
        prefill_seconds=_seconds(times.get("time_to_first_token_ms")),  # since it left the queue
        decode_seconds=_seconds(times.get("generation_time_ms")),
        logprobs=[float(value) for value in logprobs["token_logprobs"]] if logprobs else None,
        attempts=tries,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
