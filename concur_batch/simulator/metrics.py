"""What SGLang 0.5.23 tells about itself, as text and JSON, told of the simulated engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.engine import Counters
from concur_batch.simulator.request import Completion


@dataclass(slots=True)
class Served:
    """What the tokenizer process counts: requests that ended, and their tokens."""

    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0

    def add(self, completion: Completion) -> None:
        self.requests += 1
        self.aborted += completion.finish_reason == "abort"
        self.prompt_tokens += completion.prompt_tokens
        self.generation_tokens += completion.completion_tokens
        self.cached_tokens += completion.cached_tokens


def usage(counters: Counters) -> float:
    """The locked share of the pool."""
    return counters.kv_used / counters.max_total


def render_metrics(model_name: str, config: EngineConfig, counters: Counters, served: Served) -> str:
    """`GET /metrics`, in Prometheus's text format. Of a metric with several series all stand together."""
    engine = f'engine_type="unified",model_name="{model_name}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    cache = 'cache_type="UnifiedRadixCache",pp_rank="0",tp_rank="0"'
    tokenizer = f'engine_type="unified",model_name="{model_name}"'
    streams = f'{tokenizer},is_streaming="False"'
    return "".join(
        [
            *_series("gauge", "num_running_reqs", {engine: counters.running}),
            *_series("gauge", "num_queue_reqs", {engine: counters.waiting}),
            *_series("gauge", "token_usage", {engine: round(usage(counters), 2)}),
            *_series("gauge", "full_token_usage", {engine: usage(counters)}),
            *_series("gauge", "num_used_tokens", {engine: counters.kv_used}),
            *_series("gauge", "kv_used_tokens", {engine: counters.kv_used}),
            *_series("gauge", "kv_evictable_tokens", {engine: counters.kv_evictable}),
            *_series("gauge", "kv_available_tokens", {engine: counters.kv_available}),
            *_series("gauge", "max_total_num_tokens", {engine: counters.max_total}),
            *_series("gauge", "page_size", {engine: config.page_size}),
            *_series("gauge", "num_pages", {engine: counters.max_total // config.page_size}),
            *_series("gauge", "context_len", {engine: config.context_tokens}),
            *_series(
                "counter",
                "prefill_effective_tokens_total",
                {
                    f'{engine},mode="input"': counters.prefill_input,
                    f'{engine},mode="device_hit"': counters.prefill_device_hit,
                    f'{engine},mode="host_hit"': counters.prefill_host_hit,
                    f'{engine},mode="storage_hit"': counters.prefill_storage_hit,
                },
            ),
            *_series(
                "counter",
                "realtime_tokens_total",
                {
                    f'{engine},mode="prefill_compute"': counters.prefill_compute,
                    f'{engine},mode="prefill_cache"': counters.prefill_cache,
                    f'{engine},mode="decode"': counters.decode,
                },
            ),
            *_series("counter", "num_retracted_requests_total", {engine: counters.retracted_requests}),
            *_series("counter", "num_retracted_input_tokens_total", {engine: counters.retracted_input}),
            *_series("counter", "num_retracted_output_tokens_total", {engine: counters.retracted_output}),
            *_series("counter", "evicted_tokens_total", {cache: counters.evicted}),
            *_series("counter", "prompt_tokens_total", {streams: served.prompt_tokens}),
            *_series("counter", "generation_tokens_total", {streams: served.generation_tokens}),
            *_series("counter", "num_requests_total", {streams: served.requests}),
            *_series("counter", "num_aborted_requests_total", {tokenizer: served.aborted}),
            *_series(
                "counter",
                "cached_tokens_total",
                {
                    f'{tokenizer},cache_source="device"': served.cached_tokens,
                    f'{tokenizer},cache_source="total"': served.cached_tokens,
                },
            ),
        ]
    )


def _series(kind: str, name: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# TYPE sglang:{name} {kind}\n"
    for labels, value in values.items():
        yield f"sglang:{name}{{{labels}}} {value}\n"


def render_loads(config: EngineConfig, counters: Counters, stamp_seconds: float) -> dict[str, Any]:
    """`GET /v1/loads`: one rank. `stamp_seconds` since the epoch. What is not modelled is left out."""
    rank = {
        "timestamp": stamp_seconds,
        "dp_rank": 0,
        "num_running_reqs": counters.running,
        "num_waiting_reqs": counters.waiting,
        "num_used_tokens": counters.kv_used,
        "num_total_tokens": counters.kv_used + counters.waiting_tokens,
        "max_total_num_tokens": counters.max_total,
        "max_running_requests": config.running_limit,
        "token_usage": round(usage(counters), 4),
        "memory": {"token_capacity": counters.max_total},
        "queues": {"waiting": counters.waiting, "grammar": 0, "paused": 0, "prealloc_ready": 0},
    }
    return {"timestamp": stamp_seconds, "dp_rank_count": 1, "loads": [rank]}


SIMULATED = "simulated"


def render_server_info(model_name: str, config: EngineConfig, time_scale: float) -> dict[str, Any]:
    """`GET /server_info`. `version` says that this is a simulation."""
    return {
        "version": SIMULATED,
        "served_model_name": model_name,
        "model_path": model_name,
        "context_length": config.context_tokens,
        "page_size": config.page_size,
        "chunked_prefill_size": config.chunked_prefill_tokens,
        "max_running_requests": config.running_limit,
        "schedule_policy": "fcfs",
        "radix_eviction_policy": "lru",
        "max_total_num_tokens": config.pool_tokens,
        "max_req_input_len": config.max_input_tokens,
        "time_scale": time_scale,
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": config.running_limit,
                "memory_usage": {"token_capacity": config.pool_tokens},
            }
        ],
    }
