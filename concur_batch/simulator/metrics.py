"""What SGLang 0.5.23 tells about itself, as text and JSON, told of the simulated engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.engine import Counters
from concur_batch.simulator.request import Completion
from concur_batch.simulator.server_config import ServerConfig


@dataclass(slots=True)
class Served:
    """What the tokenizer process counts: requests that ended, and their tokens."""

    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    device_cached_tokens: int = 0
    host_cached_tokens: int = 0

    def add(self, completion: Completion) -> None:
        self.requests += 1
        self.aborted += completion.finish_reason == "abort"
        self.prompt_tokens += completion.prompt_tokens
        self.generation_tokens += completion.completion_tokens
        self.device_cached_tokens += completion.cached_tokens
        self.host_cached_tokens += completion.host_cached_tokens


def usage(counters: Counters) -> float:
    """The locked share of the pool."""
    return counters.kv_used / counters.max_total


_GAUGES: dict[str, Callable[[Counters], float]] = {
    "num_running_reqs": lambda c: c.running,
    "num_queue_reqs": lambda c: c.waiting,
    "token_usage": lambda c: round(usage(c), 2),
    "full_token_usage": usage,
    "num_used_tokens": lambda c: c.kv_used,
    "kv_used_tokens": lambda c: c.kv_used,
    "kv_evictable_tokens": lambda c: c.kv_evictable,
    "kv_available_tokens": lambda c: c.kv_available,
    "max_total_num_tokens": lambda c: c.max_total,
}
# By name, and by `mode` where the metric has one.
_COUNTERS: dict[str, dict[str | None, Callable[[Counters], float]]] = {
    "prefill_effective_tokens_total": {
        "input": lambda c: c.prefill_input,
        "device_hit": lambda c: c.prefill_device_hit,
        "host_hit": lambda c: c.prefill_host_hit,
        "storage_hit": lambda c: c.prefill_storage_hit,
    },
    "realtime_tokens_total": {
        "prefill_compute": lambda c: c.prefill_compute,
        "prefill_cache": lambda c: c.prefill_cache,
        "decode": lambda c: c.decode,
    },
    "num_retracted_requests_total": {None: lambda c: c.retracted_requests},
    "num_retracted_input_tokens_total": {None: lambda c: c.retracted_input},
    "num_retracted_output_tokens_total": {None: lambda c: c.retracted_output},
}


# Of HiCache: there only where it is on.
_HOST_GAUGES: dict[str, Callable[[Counters], float]] = {
    "hicache_host_used_tokens": lambda c: c.host_used,
    "hicache_host_total_tokens": lambda c: c.host_total,
}
_HOST_COUNTERS: dict[str, Callable[[Counters], float]] = {
    "load_back_tokens_total": lambda c: c.reloaded,
    "hicache_backup_tokens_total": lambda c: c.offloaded,
    "hicache_dropped_tokens_total": lambda c: c.host_dropped,
}
_SERVED: dict[str, Callable[[Served], float]] = {
    "prompt_tokens_total": lambda s: s.prompt_tokens,
    "generation_tokens_total": lambda s: s.generation_tokens,
    "num_requests_total": lambda s: s.requests,
}


def render_metrics(
    model_name: str, config: EngineConfig, ranks: Sequence[Counters], served: Mapping[bool, Served]
) -> str:
    """`GET /metrics`, in Prometheus's text format. Of a metric with several series all stand together.

    `ranks` are the dp ranks, labelled as under DP attention: the scheduler of each has a tp rank of its own. `served`
    are the requests by whether they were streamed.
    """
    tokenizer = f'engine_type="unified",model_name="{model_name}"'
    # As in SGLang, what was never streamed has no series for streams.
    kinds = {f'{tokenizer},is_streaming="{kind}"': s for kind, s in served.items() if s.requests or not kind}
    engine = {
        f'{tokenizer},moe_ep_rank="0",pp_rank="0",tp_rank="{rank}"'
        + (f',dp_rank="{rank}"' if len(ranks) > 1 else ""): c
        for rank, c in enumerate(ranks)  # a single rank is not named
    }
    sizes = {
        "page_size": config.page_size,
        "num_pages": config.pool_tokens // config.page_size,
        "context_len": config.context_tokens,
    }
    lines: list[str] = []
    for name, value in _GAUGES.items():
        lines += _series("gauge", name, {labels: value(c) for labels, c in engine.items()})
    for name, size in sizes.items():
        lines += _series("gauge", name, dict.fromkeys(engine, size))
    for name, modes in _COUNTERS.items():
        series = {
            labels + (f',mode="{mode}"' if mode else ""): value(c)
            for labels, c in engine.items()
            for mode, value in modes.items()
        }
        lines += _series("counter", name, series)
    cache = 'cache_type="UnifiedRadixCache",pp_rank="0",tp_rank="0",dp_rank='
    lines += _series("counter", "evicted_tokens_total", {f'{cache}"{n}"': c.evicted for n, c in enumerate(ranks)})
    if config.hicache is not None:
        for name, host_value in _HOST_GAUGES.items():
            lines += _series("gauge", name, {labels: host_value(c) for labels, c in engine.items()})
        reason = "host_pressure" if config.hicache.write_policy == "write_back" else "write_through_unbacked_eviction"
        for name, moved in _HOST_COUNTERS.items():
            more = f',reason="{reason}",pool="kv"' if name == "hicache_dropped_tokens_total" else ',pool="kv"'
            lines += _series("counter", name, {f'{cache}"{n}"{more}': moved(c) for n, c in enumerate(ranks)})
        # SGLang's is a histogram; its sum is what can be told.
        spent = {f'{cache}"{n}"': c.reload_seconds for n, c in enumerate(ranks)}
        lines += _series("counter", "load_back_duration_seconds_sum", spent)
    for name, tokens in _SERVED.items():
        lines += _series("counter", name, {labels: tokens(s) for labels, s in kinds.items()})
    aborted = sum(s.aborted for s in served.values())
    lines += _series("counter", "num_aborted_requests_total", {tokenizer: aborted})
    device = sum(s.device_cached_tokens for s in served.values())
    host = sum(s.host_cached_tokens for s in served.values())
    sources = {"device": device, **({"host": host} if config.hicache else {}), "total": device + host}
    tiers = {f'{tokenizer},cache_source="{source}"': tokens for source, tokens in sources.items()}
    lines += _series("counter", "cached_tokens_total", tiers)
    return "".join(lines)


def _series(kind: str, name: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# TYPE sglang:{name} {kind}\n"
    for labels, value in values.items():
        yield f"sglang:{name}{{{labels}}} {value}\n"


def render_loads(config: EngineConfig, ranks: Sequence[Counters], stamp_seconds: float) -> dict[str, Any]:
    """`GET /v1/loads`: one entry a dp rank. `stamp_seconds` since the epoch. What is not modelled is left out."""
    loads = [
        {
            "timestamp": stamp_seconds,
            "dp_rank": rank,
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
        for rank, counters in enumerate(ranks)
    ]
    return {"timestamp": stamp_seconds, "dp_rank_count": len(ranks), "loads": loads}


SIMULATED = "simulated"


def render_server_info(config: ServerConfig) -> dict[str, Any]:
    """`GET /server_info`. `version` says that it is a simulation; `max_running_requests` is of all ranks."""
    engine = config.engine
    return {
        "version": SIMULATED,
        "served_model_name": config.model_name,
        "model_path": config.model_name,
        "tokenizer_path": str(config.tokenizer),
        "context_length": engine.context_tokens,
        "page_size": engine.page_size,
        "chunked_prefill_size": engine.chunked_prefill_tokens,
        "dp_size": config.dp_size,
        "max_running_requests": engine.running_limit * config.dp_size,
        "schedule_policy": engine.schedule,
        "radix_eviction_policy": engine.eviction,
        "enable_hierarchical_cache": engine.hicache is not None,
        "enable_session_radix_cache": engine.sessions,
        "hicache_write_policy": None if engine.hicache is None else engine.hicache.write_policy,
        "tool_call_parser": config.tool_call_parser,
        "max_total_num_tokens": engine.pool_tokens,
        "max_req_input_len": engine.max_input_tokens,
        "time_scale": config.time_scale,
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": engine.running_limit,
                "memory_usage": {"token_capacity": engine.pool_tokens},
            }
        ]
        * config.dp_size,
    }


def render_model_info(config: ServerConfig) -> dict[str, Any]:
    """`GET /model_info`."""
    return {
        "model_path": config.model_name,
        "served_model_name": config.model_name,
        "tokenizer_path": str(config.tokenizer),
        "is_generation": True,
        "tool_call_parser": config.tool_call_parser,
    }
