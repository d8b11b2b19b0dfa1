"""From the engine's readings to one sample a control period. Pure.

U = locked tokens / pool tokens, never the occupancy: evictable cache is free in the law's sense. H = device hits over
looked-up prefix tokens, as differences of counters over the period; host and storage hits are recorded apart.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from concur_batch.engine.protocol import Reading

_COUNTERS = [field.name for field in fields(Reading) if field.name.endswith("_total")]


@dataclass(frozen=True, slots=True)
class Sample:
    """What one control period showed; None where the engine does not tell or nothing happened.

    A stale sample must change nothing; `note` says why it is stale.
    """

    usage: float | None
    hit_rate: float | None
    occupancy: float | None
    stale: bool
    note: str
    age_seconds: float
    reading: Reading | None
    lookup_tokens: int | None = None
    device_hit_tokens: int | None = None
    host_hit_tokens: int | None = None
    storage_hit_tokens: int | None = None
    computed_tokens: int | None = None
    decoded_tokens: int | None = None
    evicted_tokens: int | None = None
    retractions: int | None = None
    offloaded_tokens: int | None = None
    reloaded_tokens: int | None = None


class Sampler:
    """Turns successive readings into samples; keeps the last reading and when its time stamp first appeared."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._fresh_at_seconds = 0.0

    def sample(self, readings: list[Reading], now_seconds: float) -> Sample:
        """One period's sample from the readings taken in it, oldest first; U is their mean.

        An empty list (the engine did not answer) or an unchanged time stamp gives a stale sample, and so does a
        counter that went down, since the engine has then been restarted and no difference means anything.
        """
        if not readings:
            age = now_seconds - self._fresh_at_seconds if self._last else 0.0
            return Sample(None, None, None, True, "the engine did not answer", age, None)
        last, current = self._last, readings[-1]
        self._last = current
        unmoved = last is not None and current.stamp_seconds is not None and last.stamp_seconds == current.stamp_seconds
        if not unmoved:
            self._fresh_at_seconds = current.at_seconds
        restarted = last is not None and any(
            (change := _difference(last, current, name)) is not None and change < 0 for name in _COUNTERS
        )
        note = "counters went back: the engine was restarted" if restarted else ""
        if unmoved:
            note = "the engine's gauges have not been refreshed"
        delta = {name: None if last is None or restarted else _difference(last, current, name) for name in _COUNTERS}
        hits = [delta[f"{tier}_hit_tokens_total"] for tier in ("device", "host", "storage")]
        missed = delta["input_tokens_total"]
        lookups = None if missed is None or hits[0] is None else missed + sum(hit or 0 for hit in hits)
        usages = [usage for reading in readings if (usage := _share(reading, reading.locked_tokens)) is not None]
        cached = None
        if current.locked_tokens is not None and current.evictable_tokens is not None:
            cached = current.locked_tokens + current.evictable_tokens
        return Sample(
            usage=sum(usages) / len(usages) if usages else None,
            hit_rate=hits[0] / lookups if lookups and hits[0] is not None else None,
            # Both figures may be of slightly different moments.
            occupancy=None if (share := _share(current, cached)) is None else min(1.0, share),
            stale=unmoved or restarted,
            note=note,
            age_seconds=now_seconds - self._fresh_at_seconds,
            reading=current,
            lookup_tokens=lookups,
            device_hit_tokens=hits[0],
            host_hit_tokens=hits[1],
            storage_hit_tokens=hits[2],
            computed_tokens=delta["computed_tokens_total"],
            decoded_tokens=delta["decoded_tokens_total"],
            evicted_tokens=delta["evicted_tokens_total"],
            retractions=delta["retractions_total"],
            offloaded_tokens=delta["offloaded_tokens_total"],
            reloaded_tokens=delta["reloaded_tokens_total"],
        )


def _difference(last: Reading, current: Reading, name: str) -> int | None:
    before, after = getattr(last, name), getattr(current, name)
    return None if before is None or after is None else int(after) - int(before)


def _share(reading: Reading, tokens: int | None) -> float | None:
    return None if tokens is None or not reading.pool_tokens else tokens / reading.pool_tokens
