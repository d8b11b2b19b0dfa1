"""A simulated engine's counters as a reading of its pool. Pure."""

from __future__ import annotations

from concur_batch.engine.protocol import Reading
from concur_batch.simulator.engine import Counters


def make_reading(counters: Counters, now_seconds: float) -> Reading:
    """An engine's counters as one of its readings, as fresh as can be."""
    return Reading(
        at_seconds=now_seconds,
        stamp_seconds=now_seconds,
        pool_tokens=counters.max_total,
        locked_tokens=counters.kv_used,
        evictable_tokens=counters.kv_evictable,
        running_requests=counters.running,
        waiting_requests=counters.waiting,
        input_tokens_total=counters.prefill_input,
        device_hit_tokens_total=counters.prefill_device_hit,
        host_hit_tokens_total=counters.prefill_host_hit,
        storage_hit_tokens_total=counters.prefill_storage_hit,
        computed_tokens_total=counters.prefill_compute,
        decoded_tokens_total=counters.decode,
        evicted_tokens_total=counters.evicted,
        retractions_total=counters.retracted_requests,
        offloaded_tokens_total=counters.offloaded if counters.host_total else None,
        reloaded_tokens_total=counters.reloaded if counters.host_total else None,
        reload_seconds_total=counters.reload_seconds if counters.host_total else None,
    )
