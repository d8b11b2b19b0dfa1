"""SGLang's `/metrics` text and `/v1/loads` JSON as one `Reading` per data-parallel rank. Pure.

Names and meanings: SGLang 0.5.23, `srt/observability/metrics_collector.py`. Each dp rank has a KV pool and a tree of
its own, so nothing is summed over dp ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from concur_batch.engine.protocol import Reading

# A metric, and its `mode` where it has one, as a field of `Reading`.
_SCHEDULER = {
    ("sglang:max_total_num_tokens", None): "pool_tokens",
    ("sglang:kv_used_tokens", None): "locked_tokens",
    ("sglang:kv_evictable_tokens", None): "evictable_tokens",
    ("sglang:num_running_reqs", None): "running_requests",
    ("sglang:num_queue_reqs", None): "waiting_requests",
    ("sglang:prefill_effective_tokens_total", "input"): "input_tokens_total",
    ("sglang:prefill_effective_tokens_total", "device_hit"): "device_hit_tokens_total",
    ("sglang:prefill_effective_tokens_total", "host_hit"): "host_hit_tokens_total",
    ("sglang:prefill_effective_tokens_total", "storage_hit"): "storage_hit_tokens_total",
    ("sglang:realtime_tokens_total", "prefill_compute"): "computed_tokens_total",
    ("sglang:realtime_tokens_total", "decode"): "decoded_tokens_total",
    ("sglang:num_retracted_requests_total", None): "retractions_total",
}
_CACHE = {
    ("sglang:evicted_tokens_total", None): "evicted_tokens_total",
    ("sglang:hicache_backup_tokens_total", None): "offloaded_tokens_total",
    ("sglang:hicache_backup_bytes_total", None): "offloaded_bytes_total",
    ("sglang:load_back_tokens_total", None): "reloaded_tokens_total",
    ("sglang:load_back_bytes_total", None): "reloaded_bytes_total",
    ("sglang:load_back_duration_seconds_sum", None): "reload_seconds_total",
}
_FIELDS = _SCHEDULER | _CACHE
_NAMES = tuple({name for name, _ in _FIELDS})
_CACHE_FIELDS = frozenset(_CACHE.values())
# Every tensor- and pipeline-parallel rank repeats a count of tokens, but counts the bytes of its own shard.
_SHARDED = frozenset({"offloaded_bytes_total", "reloaded_bytes_total"})
# Counters that SGLang shows only once they have moved: absent, they are zero.
_ONCE_MOVED = _CACHE_FIELDS | {"retractions_total"}
_LOADS = {
    "pool_tokens": "max_total_num_tokens",
    "locked_tokens": "num_used_tokens",
    "running_requests": "num_running_reqs",
    "waiting_requests": "num_waiting_reqs",
}

# Values by (tp rank, pp rank), by field, by dp rank; None stands for a series that names no dp rank.
_Shards = dict[tuple[int, int], float]
_Told = dict[int | None, dict[str, _Shards]]


def make_readings(metrics: str | None, loads: Mapping[str, Any] | None, at_seconds: float) -> dict[int, Reading]:
    """One reading per dp rank, rank 0 where none is named; `at_seconds` is our clock at the read.

    Where both sources tell a figure `/v1/loads` wins, since it is refreshed while `/metrics` rests. On a server with
    several dp ranks a series without the label is nobody's and is left out. Raises ValueError, KeyError,
    TypeError or AttributeError where a text is not as SGLang's.
    """
    told = _parse(metrics or "")
    entries = {int(entry.get("dp_rank") or 0): entry for entry in (loads or {}).get("loads", ())}
    ranks = {rank for rank in told if rank is not None} | set(entries) or {0}
    nobodys = told.pop(None, {})
    if len(ranks) == 1:
        (only,) = ranks
        told[only] = nobodys | told.get(only, {})
    told_apart = len(ranks) == 1 or _cache_told_apart(told)
    readings = {}
    for rank in sorted(ranks):
        fields = _fields(told.get(rank, {}), told_apart)
        if (entry := entries.get(rank)) is not None:
            fields |= {field: int(entry[key]) for field, key in _LOADS.items()}
            stamp = entry.get("timestamp")
            fields["stamp_seconds"] = None if stamp is None else float(stamp)
        readings[rank] = Reading(at_seconds=at_seconds, **fields)
    return readings


def _parse(text: str) -> _Told:
    told: _Told = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    # The text holds hundreds of histogram lines; only ours are worth parsing every period.
    lines = [line for line in text.splitlines() if line.startswith(_NAMES)]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = sample.labels
            field = _FIELDS.get((sample.name, labels.get("mode")))
            # The total has an empty priority; the others are its parts.
            if field is None or labels.get("priority"):
                continue
            rank = int(labels["dp_rank"]) if labels.get("dp_rank") else None
            shard = int(labels.get("tp_rank") or 0), int(labels.get("pp_rank") or 0)
            told[rank][field][shard] += sample.value  # adds up what is told apart by pool
    return told


def _cache_told_apart(told: _Told) -> bool:
    """Whether each dp rank has its own cache counters.

    Plain data parallelism labels all of them dp rank 0, where they add up; DP attention labels them rightly. Under
    DP attention the schedulers of different dp ranks have different tp ranks (`radix_cache_metric_labels`).
    """
    return any(
        rank != 0 and (not _CACHE_FIELDS.isdisjoint(fields) or any(min(shards)[0] > 0 for shards in fields.values()))
        for rank, fields in told.items()
    )


def _fields(told: Mapping[str, _Shards], told_apart: bool) -> dict[str, Any]:
    values = {field: _value(field, shards) for field, shards in told.items()}
    if not _CACHE_FIELDS.issuperset(values):  # an engine that tells nothing has not told zero
        values = dict.fromkeys(_ONCE_MOVED, 0.0) | values
    return {
        field: value if field.endswith("seconds_total") else int(value)
        for field, value in values.items()
        if told_apart or field not in _CACHE_FIELDS
    }


def _value(field: str, shards: _Shards) -> float:
    # Under DP attention a dp rank's only series may be of a tp rank other than 0.
    return float(sum(shards.values())) if field in _SHARDED else shards[min(shards)]
