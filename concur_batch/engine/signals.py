"""From the readings of one KV pool to one sample a control period. Pure.

U = locked tokens / pool tokens, never the occupancy: evictable cache is free in the law's sense. H = device hits over
looked-up prefix tokens, as differences of counters over the period; host and storage hits are recorded apart.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from concur_batch.engine.protocol import Reading

Smoothing = Literal["none", "mean", "ewma"]

_COUNTERS = [field.name for field in fields(Reading) if field.name.endswith("_total")]


@dataclass(frozen=True, slots=True)
class Sample:
    """What one control period of one KV pool showed; None where the engine does not tell or nothing happened.

    `usage` U and `hit_rate` H are smoothed as the sampler was told, `raw_usage` and `raw_hit_rate` are not. A stale
    sample must change nothing; `note` says why it is stale, or what is not known of a fresh one. `answered` is False
    where no reading was had, `restarted` is True where counters went back or the pool changed its size. `age_seconds`
    is the time since the engine last refreshed its gauges. `estimated`: U and H are ours, the engine tells none.
    Tokens, bytes, `retractions` and `reload_seconds` (waiting for copies from the host) are of this period and of
    silent ones just before it, so that a sum over samples is exact.
    """

    usage: float | None = None
    hit_rate: float | None = None
    occupancy: float | None = None
    stale: bool = False
    note: str = ""
    age_seconds: float = 0.0
    answered: bool = True
    restarted: bool = False
    estimated: bool = False
    raw_usage: float | None = None
    raw_hit_rate: float | None = None
    pool_tokens: int | None = None
    locked_tokens: int | None = None
    evictable_tokens: int | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None
    lookup_tokens: int | None = None
    device_hit_tokens: int | None = None
    host_hit_tokens: int | None = None
    storage_hit_tokens: int | None = None
    computed_tokens: int | None = None
    decoded_tokens: int | None = None
    evicted_tokens: int | None = None
    retractions: int | None = None
    offloaded_tokens: int | None = None
    offloaded_bytes: int | None = None
    reloaded_tokens: int | None = None
    reloaded_bytes: int | None = None
    reload_seconds: float | None = None


class Sampler:
    """Turns the successive readings of one KV pool into samples.

    Smoothing: `none` takes U of a period's last reading, `mean` the mean over its readings (H is a quotient of the
    whole period's counters either way); `ewma` takes exponentially weighted averages of U and H over the periods, in
    which the newest has the weight `ewma_weight`, above 0 and at most 1. Stale and undefined values leave an average
    alone, and a restart of the engine begins it anew.
    """

    def __init__(self, smoothing: Smoothing = "none", ewma_weight: float = 0.3) -> None:
        self._smoothing = smoothing
        self._weight = ewma_weight
        self._averages: dict[str, float] = {}
        # The last value that was told of each: a reading may tell less than the one before.
        self._totals: dict[str, float] = {}
        self._pool_tokens: int | None = None
        self._stamp_seconds: float | None = None
        self._fresh_at_seconds: float | None = None

    def smooth(self, smoothing: Smoothing, ewma_weight: float) -> None:
        """Smooth otherwise from now on; averages begin anew, differences of counters go on."""
        self._smoothing, self._weight = smoothing, ewma_weight
        self._averages.clear()

    def count_from_zero(self, *counters: str) -> None:
        """Counters that begin with the batch: what they tell first is a difference already. Known ones stay."""
        self._totals = dict.fromkeys(counters, 0) | self._totals

    def sample(self, readings: list[Reading], now_seconds: float) -> Sample:
        """One period's sample from the readings taken in it, oldest first.

        An empty list (the engine did not answer), an unchanged time stamp and a restart give a stale sample: after a
        restart no difference of counters means anything.
        """
        if self._fresh_at_seconds is None:
            self._fresh_at_seconds = now_seconds
        if not readings:
            age = now_seconds - self._fresh_at_seconds
            return Sample(stale=True, note="the engine did not answer", age_seconds=age, answered=False)
        current = readings[-1]
        unmoved = current.stamp_seconds is not None and current.stamp_seconds == self._stamp_seconds
        restarted = self._restarted(current)
        if restarted:
            self._totals.clear()
            self._averages.clear()
            readings = [current]
        delta = self._take_differences(current)
        if not unmoved:
            self._fresh_at_seconds = current.at_seconds
        if current.stamp_seconds is not None:
            self._stamp_seconds = current.stamp_seconds
        if current.pool_tokens is not None:
            self._pool_tokens = current.pool_tokens

        missed, device_hits = delta.pop("input_tokens"), delta["device_hit_tokens"]
        lookups = None
        if missed is not None and device_hits is not None:
            lookups = missed + device_hits + (delta["host_hit_tokens"] or 0) + (delta["storage_hit_tokens"] or 0)
        usages = [usage for reading in readings if (usage := _share(reading, reading.locked_tokens)) is not None]
        raw_usage = _share(current, current.locked_tokens)
        usage = sum(usages) / len(usages) if self._smoothing == "mean" and usages else raw_usage
        hit_rate = device_hits / lookups if lookups else None
        cached = None
        if current.locked_tokens is not None and current.evictable_tokens is not None:
            cached = current.locked_tokens + current.evictable_tokens
        stale = unmoved or restarted
        return Sample(
            usage=self._smooth("usage", usage, stale),
            hit_rate=self._smooth("hit_rate", hit_rate, stale),
            # Both figures may be of slightly different moments.
            occupancy=None if (share := _share(current, cached)) is None else min(1.0, share),
            stale=stale,
            note=_note(current, unmoved, restarted),
            age_seconds=now_seconds - self._fresh_at_seconds,
            restarted=restarted,
            estimated=current.estimated,
            raw_usage=raw_usage,
            raw_hit_rate=hit_rate,
            pool_tokens=current.pool_tokens,
            locked_tokens=current.locked_tokens,
            evictable_tokens=current.evictable_tokens,
            running_requests=current.running_requests,
            waiting_requests=current.waiting_requests,
            lookup_tokens=lookups,
            **delta,
        )

    def _restarted(self, current: Reading) -> bool:
        """A pool keeps its size, and a counter grows, for as long as the engine lives."""
        resized = None not in (current.pool_tokens, self._pool_tokens) and current.pool_tokens != self._pool_tokens
        return resized or any(
            (value := getattr(current, name)) is not None and value < self._totals.get(name, 0) for name in _COUNTERS
        )

    def _take_differences(self, current: Reading) -> dict[str, Any]:
        """Of every counter since it was last told, under its name without `_total`."""
        differences: dict[str, Any] = {}
        for name in _COUNTERS:
            value, before = getattr(current, name), self._totals.get(name)
            differences[name.removesuffix("_total")] = None if value is None or before is None else value - before
            if value is not None:
                self._totals[name] = value
        return differences

    def _smooth(self, name: str, raw: float | None, stale: bool) -> float | None:
        """An undefined value stays undefined: H of a period without look-ups must not cut."""
        if self._smoothing != "ewma" or raw is None:
            return raw
        before = self._averages.get(name, raw)
        if stale:
            return before
        self._averages[name] = before + self._weight * (raw - before)
        return self._averages[name]


def _note(current: Reading, unmoved: bool, restarted: bool) -> str:
    if restarted:
        return "counters went back or the pool changed its size: the engine was restarted"
    if unmoved:
        return "the engine's gauges have not been refreshed"
    if current.stamp_seconds is None:
        return "the engine stamps no time on its gauges: whether they are fresh is not known"
    return ""


def _share(reading: Reading, tokens: int | None) -> float | None:
    return None if tokens is None or not reading.pool_tokens else tokens / reading.pool_tokens
