"""Whether the signals of one KV pool move as the law needs them to: judged from a few small requests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from concur_batch.doctor.finding import Finding, failure, ok, warning
from concur_batch.engine.pools import EngineKind
from concur_batch.engine.protocol import Generation, Reading

_TELL_METRICS: Mapping[EngineKind, str] = {
    "sglang": "start the server with --enable-metrics",
    "vllm": "start the server without --disable-log-stats",
}
TELL_CACHED: Mapping[EngineKind, str] = {
    "sglang": "start the server without --disable-radix-cache",
    "vllm": "start the server with --enable-prompt-tokens-details and without --no-enable-prefix-caching",
    "openai": "vLLM tells them with --enable-prompt-tokens-details, SGLang with --enable-cache-report",
}
_FROZEN = "the gauges stand still: look for a proxy that caches them, or for another server's /metrics at this URL"
_BUSY = "ask again while the server has no other requests"


@dataclass(frozen=True, slots=True)
class Trial:
    """What one pool told while a fresh prompt was generated from twice, and then a longer output was made.

    `before` was read ahead of the two requests, `first` and `second` are their answers, `counted` was read after them.
    `during` was read while the longer output was made, `after` once it had ended and the pool had had time to tell.
    """

    before: Reading
    first: Generation
    second: Generation
    counted: Reading
    during: tuple[Reading, ...]
    after: Reading

    @property
    def busy(self) -> bool:
        """Whether others' requests blur what was seen."""
        return any((reading.running_requests or 0) > 1 for reading in self.during) or any(
            (reading.running_requests or 0) > 0 for reading in (self.before, self.after)
        )


def judge(trial: Trial, kind: EngineKind) -> Iterator[Finding]:
    """Every signal of the pool."""
    yield cached_tokens(trial.first, trial.second, kind)
    yield hit_counter(trial, kind)
    yield locked_tokens(trial, kind)
    yield evictable_tokens(trial, kind)
    yield running_requests(trial, kind)
    yield time_stamps(trial, kind)


def cached_tokens(first: Generation, second: Generation, kind: EngineKind) -> Finding:
    """The repeated prompt must have hit, the fresh one not as much."""
    fresh, repeated, name = _cached(first), _cached(second), "cached tokens"
    if repeated is None or fresh is None:
        return failure(name, "not told by the requests", TELL_CACHED[kind])
    seen = f"a repeated prompt hit {repeated} of {second.input_tokens} tokens"
    if repeated > fresh:
        return ok(name, seen)
    if repeated:
        return failure(name, f"{seen}, as did a fresh one ({fresh})", "the server does not count them by request")
    return failure(name, seen, TELL_CACHED[kind])


def hit_counter(trial: Trial, kind: EngineKind) -> Finding:
    """H, the law's hit rate, is made of differences of this counter and of the one of misses."""
    name = "hit counters"
    before, after = trial.before, trial.counted
    if None in (after.device_hit_tokens_total, after.input_tokens_total):
        return failure(name, "not told: without them the law has no hit rate", _TELL_METRICS[kind])
    hits = (after.device_hit_tokens_total or 0) - (before.device_hit_tokens_total or 0)
    missed = (after.input_tokens_total or 0) - (before.input_tokens_total or 0)
    seen = f"grew by {hits} hits and {missed} misses"
    cached = trial.second.cached_device_tokens or 0
    if hits >= cached and hits > 0 and missed > 0:
        return ok(name, seen)
    return failure(name, f"{seen}, where the requests told {cached} hits", _FROZEN if cached else TELL_CACHED[kind])


def locked_tokens(trial: Trial, kind: EngineKind) -> Finding:
    """U, the law's KV usage: it must rise while a request runs and fall when it has ended."""
    name = "locked tokens"
    told = [reading.locked_tokens for reading in trial.during if reading.locked_tokens is not None]
    rest = [reading.locked_tokens for reading in (trial.before, trial.counted) if reading.locked_tokens is not None]
    end = trial.after.locked_tokens
    if not told or not rest or end is None:
        return failure(name, "not told: without them the law has no KV usage", _TELL_METRICS[kind])
    peak = max(told)
    seen = f"{min(rest)} at rest, {peak} during a generation, {end} after it"
    if peak > min(rest) and end < peak:
        return ok(name, seen)
    return warning(name, f"{seen}, while others' requests ran", _BUSY) if trial.busy else failure(name, seen, _FROZEN)


def evictable_tokens(trial: Trial, kind: EngineKind) -> Finding:
    """Of these `steady` and the audit know the occupancy; no law needs them."""
    name, told = "evictable tokens", trial.after.evictable_tokens
    if told is None and kind == "vllm":
        return ok(name, "vLLM never tells them: the occupancy stays unknown")
    if told is None:
        return warning(name, "not told: the occupancy stays unknown", _TELL_METRICS[kind])
    if told == 0 and not trial.busy:
        return warning(name, "0 after requests that ended: nothing stays cached", TELL_CACHED[kind])
    return ok(name, str(told))


def running_requests(trial: Trial, kind: EngineKind) -> Finding:
    """Our own request must be seen."""
    name = "running requests"
    told = [reading.running_requests for reading in trial.during if reading.running_requests is not None]
    if not told:
        return warning(name, "not told", _TELL_METRICS[kind])
    return ok(name, f"{max(told)} seen") if max(told) else failure(name, "0 while a generation ran", _FROZEN)


def time_stamps(trial: Trial, kind: EngineKind) -> Finding:
    """By the engine's own stamps a stale reading is told from a fresh one."""
    name = "time stamps"
    told = [r.stamp_seconds for r in (trial.before, *trial.during, trial.after) if r.stamp_seconds is not None]
    if not told and kind == "vllm":
        return ok(name, "vLLM tells none: every reading counts as fresh")
    if not told:
        return warning(name, "none: every reading counts as fresh", "update SGLang to one that serves /v1/loads")
    if max(told) > told[0]:
        return ok(name, f"advanced by {max(told) - told[0]:.1f} s")
    return failure(name, "did not advance during a generation: every sample would be stale", _FROZEN)


def _cached(generation: Generation) -> int | None:
    if generation.cached_device_tokens is None:
        return None
    return generation.cached_device_tokens + generation.cached_host_tokens + generation.cached_storage_tokens
