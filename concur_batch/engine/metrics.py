"""SGLang's `/metrics` text and `/v1/loads` JSON as a `Reading`. Pure.

Every tensor-parallel rank repeats the same logical counts, so only rank 0 is read; data-parallel ranks have pools of
their own and are summed. Names and meanings: SGLang 0.5.23, `srt/observability/metrics_collector.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from concur_batch.engine.protocol import Reading

_GAUGES = {
    "sglang:max_total_num_tokens": "pool_tokens",
    "sglang:kv_used_tokens": "locked_tokens",
    "sglang:kv_evictable_tokens": "evictable_tokens",
    "sglang:num_running_reqs": "running_requests",
    "sglang:num_queue_reqs": "waiting_requests",
}
_COUNTERS = {
    ("sglang:prefill_effective_tokens_total", "input"): "input_tokens_total",
    ("sglang:prefill_effective_tokens_total", "device_hit"): "device_hit_tokens_total",
    ("sglang:prefill_effective_tokens_total", "host_hit"): "host_hit_tokens_total",
    ("sglang:prefill_effective_tokens_total", "storage_hit"): "storage_hit_tokens_total",
    ("sglang:realtime_tokens_total", "prefill_compute"): "computed_tokens_total",
    ("sglang:realtime_tokens_total", "decode"): "decoded_tokens_total",
    ("sglang:evicted_tokens_total", None): "evicted_tokens_total",
    ("sglang:num_retracted_requests_total", None): "retractions_total",
    ("sglang:hicache_backup_tokens_total", None): "offloaded_tokens_total",
    ("sglang:load_back_tokens_total", None): "reloaded_tokens_total",
}
_NAMES = (*_GAUGES, *{name for name, _ in _COUNTERS})
# Counters that SGLang shows only once they have moved.
_ABSENT_MEANS_ZERO = ("evicted_tokens_total", "retractions_total")


def parse_metrics(text: str) -> dict[str, int]:
    """The fields of a `Reading` that a `/metrics` text tells; what it does not tell is absent."""
    # The text holds hundreds of histogram lines; only ours are worth parsing every period.
    lines = [line for line in text.splitlines() if line.startswith(_NAMES)]
    totals: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.labels.get("tp_rank", "0") != "0" or sample.labels.get("pp_rank", "0") != "0":
                continue
            field = _GAUGES.get(sample.name) or _COUNTERS.get((sample.name, sample.labels.get("mode")))
            if field is not None:
                totals[field] += sample.value
    if totals:
        for field in _ABSENT_MEANS_ZERO:
            totals.setdefault(field, 0.0)
    return {field: int(value) for field, value in totals.items()}


def make_reading(metrics: str | None, loads: Mapping[str, Any] | None, at_seconds: float) -> Reading:
    """Join both sources; where both tell a figure, `/v1/loads` wins, since it is refreshed while `/metrics` rests."""
    fields: dict[str, Any] = dict(parse_metrics(metrics)) if metrics is not None else {}
    ranks = list(loads.get("loads", ())) if loads is not None else []
    if ranks:
        for field, key in (
            ("pool_tokens", "max_total_num_tokens"),
            ("locked_tokens", "num_used_tokens"),
            ("running_requests", "num_running_reqs"),
            ("waiting_requests", "num_waiting_reqs"),
        ):
            fields[field] = sum(int(rank[key]) for rank in ranks)
        fields["stamp_seconds"] = min(float(rank["timestamp"]) for rank in ranks)
    return Reading(at_seconds=at_seconds, **fields)
