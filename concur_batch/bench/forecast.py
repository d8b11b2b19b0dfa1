"""Settings compared by their simulated batches: who is fastest, by how much, and how sure that is. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from concur_batch.bench.fit import Fit
from concur_batch.bench.prediction import Prediction
from concur_batch.bench.same_work import same_work

Sureness = Literal["clear", "likely", "open", "unknown"]

# Margins below this are within what the model cannot tell, however regular they are.
_LEAST_MARGIN = 0.02
_MOST_LIKELY = 0.8
_LEAST_VARIATIONS = 3


@dataclass(frozen=True, slots=True)
class Forecast:
    """One setting's predictions, one for each variation, in the order that all settings have in common; `hardware` is
    what it was simulated on, in words."""

    name: str
    hardware: str
    predictions: tuple[Prediction, ...]
    gpus: int | None = None
    has_host_tier: bool = False

    @property
    def seconds(self) -> list[float]:
        return [prediction.seconds for prediction in self.predictions]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def oversized(self) -> int:
        """Agents that no KV pool could hold to their end, at most in any variation."""
        return max([row["status"] for row in each.work].count("oversized") for each in self.predictions)

    @property
    def gpu_hours(self) -> float | None:
        """Of the median batch; None where the GPUs are not known."""
        return None if self.gpus is None else self.gpus * self.median_seconds / 3600

    def median(self, figure: str) -> float | None:
        """Of a figure over the variations; None where none has it."""
        values = [value for each in self.predictions if (value := getattr(each, figure)) is not None]
        return statistics.median(values) if values else None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The run whose agents are replayed: what it took itself, the tokens of its KV pools that it tells, `own` the
    forecast of its own setting, how many of its agents are left out, the tokens that its turns found in host memory,
    and the fit where its turns decide the costs."""

    name: str
    seconds: float
    policy: str
    pools: tuple[int, ...]
    own: Forecast | None
    left_out: int
    host_tokens: int
    fit: Fit | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """All forecasts, with at least one variation in common: their names, and how many of what they are, in words."""

    forecasts: tuple[Forecast, ...]
    of: str
    variations: tuple[str, ...]
    recorded: RecordedRun | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A setting beside the reference. `speed_up` is the median over the variations of the reference's seconds over its
    own; None where the work differs, and then `differences` say how, of the first variation in which it does."""

    speed_up: float | None
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The setting with the least median seconds, of those that did the same work as the reference. `margins` are how
    much longer the next one takes, by variation; empty where there is no next one."""

    best: Forecast
    second: Forecast | None
    margins: tuple[float, ...]

    @property
    def sure(self) -> Sureness:
        """clear: faster in every variation, by 2 % at least in the median. likely: in four of five. open: less often,
        or by less. unknown: fewer than three variations tell no spread."""
        if len(self.margins) < _LEAST_VARIATIONS:
            return "unknown"
        wins = sum(margin > 0 for margin in self.margins)
        if statistics.median(self.margins) < _LEAST_MARGIN or wins < _MOST_LIKELY * len(self.margins):
            return "open"
        return "clear" if wins == len(self.margins) else "likely"

    def text(self, of: str) -> str:
        """In words; `of` names the variations, as in "3 seeds"."""
        head = f"{self.best.name}: simulated {self.best.median_seconds:,.1f} s in the median of {of}"
        if self.second is None:
            return f"{head}; no other setting did the same work"
        count, wins = len(self.margins), sum(margin > 0 for margin in self.margins)
        least, middle, most = min(self.margins), statistics.median(self.margins), max(self.margins)
        verdict = {
            "clear": "clear: the margin is there in every variation",
            "likely": "likely, not certain",
            "open": "open: the difference is within what varies, take either",
            "unknown": f"not known: fewer than {_LEAST_VARIATIONS} variations tell no spread",
        }[self.sure]
        span = f" ({least:+.1%} to {most:+.1%})" if count > 1 else ""
        return (
            f"{head}. The next, {self.second.name}, takes {middle:+.1%}{span} and is slower in {wins} of {count}. "
            f"How sure: {verdict}"
        )


def reference_of(forecasts: Sequence[Forecast]) -> Forecast:
    """What the others are compared with: no control where it is among them, else the first."""
    return next((each for each in forecasts if each.name.split()[0] == "none"), forecasts[0])


def compare(reference: Forecast, forecast: Forecast) -> Comparison:
    """By the same-work check of every variation."""
    ratios = []
    for ours, theirs in zip(reference.predictions, forecast.predictions, strict=True):
        difference = same_work(ours.work, theirs.work)
        if not difference.same:
            return Comparison(None, tuple(difference.lines()))
        ratios.append(ours.seconds / theirs.seconds if theirs.seconds else 1.0)
    return Comparison(statistics.median(ratios))


def recommend(forecasts: Sequence[Forecast]) -> Recommendation:
    """Of settings that have at least one variation in common."""
    reference = reference_of(forecasts)
    able = [each for each in forecasts if compare(reference, each).speed_up is not None]
    best, *rest = sorted(able, key=lambda each: each.median_seconds)
    if not rest:
        return Recommendation(best, None, ())
    pairs = zip(best.seconds, rest[0].seconds, strict=True)
    return Recommendation(best, rest[0], tuple(theirs / ours - 1 if ours else 0.0 for ours, theirs in pairs))
