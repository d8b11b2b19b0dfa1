"""vLLM's `/metrics` text as one `Reading` per data-parallel rank. Pure.

Names and meanings: vLLM 0.32.0, `v1/metrics/loggers.py`. The label `engine` is the dp rank; each has a KV pool of its
own. vLLM stamps no time on its gauges and does not tell what is cached but not held by a running request.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from concur_batch.engine.protocol import Reading

# A metric, and its `source` where it has one. Look-ups and hits are of first attempts only: vLLM counts those of
# preempted requests apart and shows them nowhere; so it does not show what is computed again after a preemption.
_USAGE = ("vllm:kv_cache_usage_perc", None)  # of the blocks, those held by running requests; 1.0 is all
_LOOKUPS = ("vllm:prefix_cache_queries_total", None)
_HITS = ("vllm:prefix_cache_hits_total", None)
_OTHER_TIERS = ("vllm:external_prefix_cache_hits_total", None)
_HOST_HITS = ("vllm:prompt_tokens_cached_by_source_total", "host")
_COUNTS = {
    ("vllm:num_requests_running", None): "running_requests",
    ("vllm:num_requests_waiting", None): "waiting_requests",
    _HITS: "device_hit_tokens_total",
    _HOST_HITS: "host_hit_tokens_total",
    ("vllm:prompt_tokens_by_source_total", "local_compute"): "computed_tokens_total",
    ("vllm:generation_tokens_total", None): "decoded_tokens_total",
    ("vllm:num_preemptions_total", None): "retractions_total",
}
_CONFIG = "vllm:cache_config_info"
_WANTED = frozenset({_USAGE, _LOOKUPS, _OTHER_TIERS, *_COUNTS})
_NAMES = (_CONFIG, *sorted({name for name, _ in _WANTED}))


@dataclass(frozen=True, slots=True)
class VllmPool:
    """One KV pool: what it shows, and the tokens of a block, by whole multiples of which prefixes are cached."""

    reading: Reading
    block_tokens: int | None


def make_vllm_pools(metrics: str, at_seconds: float) -> dict[int, VllmPool]:
    """The pool of every dp rank; `at_seconds` is our clock at the read.

    A server with one rank has it under 0, whatever its label: behind a balancer of its own each server names another.
    Raises ValueError, ArithmeticError or KeyError where the text is not as vLLM's.
    """
    values: dict[int, dict[tuple[str, str | None], float]] = defaultdict(dict)
    configs: dict[int, dict[str, str]] = {}
    # The text holds hundreds of histogram lines; only ours are worth parsing every period.
    lines = [line for line in metrics.splitlines() if line.startswith(_NAMES)]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            rank = int(sample.labels.get("engine", 0))
            if sample.name == _CONFIG:
                configs[rank] = sample.labels
            elif (key := (sample.name, sample.labels.get("source"))) in _WANTED:
                values[rank][key] = sample.value
    ranks = sorted(values.keys() | configs.keys()) or [0]
    pools = [_pool(values.get(rank, {}), configs.get(rank, {}), len(ranks), at_seconds) for rank in ranks]
    return dict(zip(ranks if len(ranks) > 1 else [0], pools, strict=True))


def _pool(
    values: dict[tuple[str, str | None], float], config: dict[str, str], ranks: int, at_seconds: float
) -> VllmPool:
    fields: dict[str, Any] = {field: int(values[key]) for key, field in _COUNTS.items() if key in values}
    block_tokens = _positive(config.get("block_size"))
    if (pool_tokens := _pool_tokens(config, block_tokens, ranks)) is not None:
        fields["pool_tokens"] = pool_tokens
        if _USAGE in values:
            fields["locked_tokens"] = round(values[_USAGE] * pool_tokens)
    if _LOOKUPS in values and _HITS in values:
        other_tiers = int(values.get(_OTHER_TIERS, 0))
        fields["input_tokens_total"] = int(values[_LOOKUPS]) - fields["device_hit_tokens_total"] - other_tiers
        if _HOST_HITS in values:
            fields["storage_hit_tokens_total"] = other_tiers - fields["host_hit_tokens_total"]
    return VllmPool(Reading(at_seconds=at_seconds, **fields), block_tokens)


def _pool_tokens(config: dict[str, str], block_tokens: int | None, ranks: int) -> int | None:
    """What one rank's pool can hold.

    The number of blocks is the sum over the ranks of the server (`v1/engine/core_client.py`), the size in tokens is of
    one; older versions tell only the former. One block of a rank is the null block, which holds nothing and is no part
    of the usage (`v1/core/block_pool.py`).
    """
    if block_tokens is None:
        return None
    tokens = _positive(config.get("kv_cache_size_tokens"))
    if tokens is None and (blocks := _positive(config.get("num_gpu_blocks"))) is not None:
        tokens = blocks // ranks * block_tokens
    return None if tokens is None else tokens - block_tokens


def _positive(label: str | None) -> int | None:
    """Unset settings are told as "None"."""
    return int(label) if label and label.isdecimal() and int(label) > 0 else None
