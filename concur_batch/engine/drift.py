"""Whether an engine's counters agree with what its own requests say of themselves. Pure.

The engine counts a prompt when its prefill begins, a request when it completes. So of the engine's counts in the
window some belong to requests that have not completed, and some requests of the window were counted before it. A plain
difference would report every swing of the hit rate, and every growth of the load, as drift. Reported is only what no
lag from prefill to completion can explain.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from concur_batch.engine.signals import Sample

# Beside the longest generation: the beat that tells of a turn, and a sample that is a little late.
LAG_PERIODS = 2
# The engine's counts at either edge of the window may be of other requests for a lag each: in a window of so many lags
# a steady load drifts visibly from a true difference of H of about 0.2, or a load of 1.5 times ours; a longer window
# would tell of it later.
WINDOW_LAGS = 6
# Below this, a probe or a health check weighs.
LEAST_TOKENS = 1_000
# Half of h_thresh's published value: the law's decisions would begin to differ.
HIT_RATE_DRIFT = 0.1
# Requests that were aborted or failed are counted by the engine alone; they are no fifth of a healthy run.
FOREIGN_LOAD_RATIO = 1.2


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the two accounts of one KV pool are apart, over the window.

    `hit_rate_difference` is H by the engine minus H by the requests, `load_ratio` the looked-up tokens by the engine
    over those by the requests; both are the least that is beyond any lag, 0.0 and 1.0 where a lag explains all.
    """

    hit_rate_difference: float
    load_ratio: float

    @property
    def foreign_load(self) -> bool:
        """Whether the engine looks up clearly more than our requests ask of it."""
        return self.load_ratio > FOREIGN_LOAD_RATIO

    @property
    def hit_rate_drifts(self) -> bool:
        """Whether the engine's H is another than our requests'."""
        return abs(self.hit_rate_difference) > HIT_RATE_DRIFT

    @property
    def note(self) -> str:
        """What to tell a person; empty where the accounts agree. Foreign load explains another H."""
        if self.foreign_load:
            return f"the engine looked up {self.load_ratio:.1f} times the tokens of this run: other clients use it"
        if self.hit_rate_drifts:
            return (
                f"the engine's hit rate is off by {self.hit_rate_difference:+.2f} from that of the requests' own "
                "cached tokens: its counters are not of device hits, or of another pool"
            )
        return ""


@dataclass(frozen=True, slots=True)
class _Counts:
    """Tokens of some time: by the engine and by the requests."""

    engine_lookups: int = 0
    engine_hits: int = 0
    request_lookups: int = 0
    request_hits: int = 0


class DriftMeter:
    """Compares the two accounts of one KV pool over a sliding window of WINDOW_LAGS lags.

    The lag is the longest time from a request's prefill to its completion, in control periods, that was seen so far.
    """

    def __init__(self) -> None:
        self._lag = LAG_PERIODS
        self._history: deque[_Counts] = deque()
        self._held = _Counts()

    def add(self, sample: Sample, request_input_tokens: int, request_device_hit_tokens: int, lag_periods: int) -> None:
        """Note one control period: its sample, the tokens of the requests that completed in it, and the longest lag of
        those and of the requests that are under way."""
        self._lag = max(self._lag, lag_periods)
        if sample.restarted:  # what was in flight is counted on neither side any more
            self._history.clear()
            self._held = _Counts()
            return
        held = _Counts(
            request_lookups=self._held.request_lookups + request_input_tokens,
            request_hits=self._held.request_hits + request_device_hit_tokens,
        )
        if sample.lookup_tokens is None or sample.device_hit_tokens is None:
            self._held = held  # the sample that ends the silence spans it all
            return
        counts = _Counts(sample.lookup_tokens, sample.device_hit_tokens, held.request_lookups, held.request_hits)
        self._history.append(counts)
        # Requests that complete as the window begins were counted up to a lag before it.
        while len(self._history) > (WINDOW_LAGS + 1) * self._lag:
            self._history.popleft()
        self._held = _Counts()

    def drift(self) -> Drift | None:
        """The drift over the window; None until it is full, and where too few tokens were looked up."""
        if len(self._history) < (WINDOW_LAGS + 1) * self._lag:
            return None
        periods = list(self._history)
        window, surely = periods[self._lag :], periods[self._lag : -self._lag]
        lookups, hits = sum(p.request_lookups for p in window), sum(p.request_hits for p in window)
        least_lookups, most_lookups = sum(p.engine_lookups for p in surely), sum(p.engine_lookups for p in periods)
        least_hits, most_hits = sum(p.engine_hits for p in surely), sum(p.engine_hits for p in periods)
        if min(lookups, most_lookups) < LEAST_TOKENS:
            return None
        # The window's requests are among those counted in all periods, and are at least those that were surely
        # counted in it. H is lowest where, of the others, all misses and no hits belong to it.
        missed = (most_lookups - most_hits) - (least_lookups - least_hits)
        lowest = least_hits / (least_lookups + missed) if least_lookups + missed else 1.0
        hit = most_hits - least_hits
        highest = most_hits / (least_lookups + hit) if least_lookups + hit else 0.0
        rate = hits / lookups
        return Drift(
            hit_rate_difference=max(lowest - rate, 0.0) + min(highest - rate, 0.0),
            load_ratio=min(max(least_lookups / lookups, 1.0), most_lookups / lookups),
        )
