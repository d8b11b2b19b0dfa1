"""Forecasts as a table for the terminal, the lines below it, and as plain data. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from concur_batch.bench.forecast import Forecast, Outcome, Recommendation, compare, reference_of
from concur_batch.report.text import amount

_COLUMNS = (
    *("setting", "simulated s", "GPU h", "speed-up", "hits", "from host", "recomputed", "evicted", "retracted"),
    *("W mean, max", "cuts"),
)
_FIGURES = (
    *("device_hit_rate", "host_hit_rate", "recomputed_tokens", "recomputed_share", "evicted_tokens", "retractions"),
    *("window_mean", "window_max", "cuts"),
)
# What docs/simulator.md tells at length.
LEFT_OUT = (
    "Left out: time outside the engine (parsing, HTTP, scheduling of tools), CPU-bound servers, speculative decoding, "
    "mixed prefill and decode; costs come from specifications and calibrated efficiencies: see docs/simulator.md"
)


def as_table(outcome: Outcome) -> Table:
    """One row a setting: medians over the variations. `hits` and `from host` are shares of the prompts' tokens,
    `recomputed` also as a share of what was computed."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    reference = reference_of(outcome.forecasts)
    for forecast in outcome.forecasts:
        table.add_row(forecast.name, *_cells(forecast, reference))
    return table


def heading(outcome: Outcome) -> Iterator[str]:
    """What is simulated, and on what."""
    work = outcome.forecasts[0].predictions[0].work
    turns = sum(row["turns"] for row in work)
    yield f"SIMULATED: {len(work):,} agents, {turns:,} turns; medians of {outcome.of}, in brackets least and most"
    names: dict[str, list[str]] = {}
    for forecast in outcome.forecasts:
        names.setdefault(forecast.hardware, []).append(forecast.name)
    for hardware, settings in names.items():
        yield hardware if len(names) == 1 else f"{hardware}: {', '.join(settings)}"


def notes(outcome: Outcome, best: Recommendation) -> Iterator[str]:
    """What the table does not say, a line each."""
    reference = reference_of(outcome.forecasts)
    if len(outcome.forecasts) > 1:
        yield f"speed-up: over {reference.name}, which did the same work agent by agent where a figure stands"
    for forecast in outcome.forecasts:
        if forecast.oversized:
            yield f"{forecast.name}: {forecast.oversized:,} agents end early, for their histories outgrow the KV pool"
        for line in compare(reference, forecast).differences:
            yield f"No speed-up of {forecast.name}: its work is not that of {reference.name}: {line}"
    recorded = outcome.recorded
    if recorded is not None:
        sizes = " + ".join(f"{tokens:,}" for tokens in recorded.pools)
        pools = f", KV pool of {sizes} tokens" if sizes else ""
        told = f"{recorded.name} itself took {recorded.seconds:,.1f} s ({recorded.policy}{pools})"
        if recorded.own is not None:
            simulated = recorded.own.predictions[0].seconds
            told += f"; simulated as recorded {simulated:,.1f} s, {simulated / recorded.seconds - 1:+.1%}"
        yield told
        if recorded.fit is not None:
            fit = recorded.fit
            yield (
                f"No GPU is named, so costs are fitted to {fit.turns:,} turns of it: mean error "
                f"{fit.prefill_error:.0%} of prefill seconds, {fit.decode_error:.0%} of decode seconds"
            )
        if recorded.host_tokens and not any(forecast.has_host_tier for forecast in outcome.forecasts):
            found = f"Its turns found {recorded.host_tokens:,} tokens in host memory, which is not simulated"
            yield f"{found}; give simulate.gpu and simulate.hicache"
        if recorded.left_out:
            yield f"{recorded.left_out:,} agents of it are left out: they did not come to an end of their own"
    if len(outcome.forecasts) > 1:
        yield f"Recommended: {best.text(outcome.of)}"
    yield LEFT_OUT


def as_json(outcome: Outcome, best: Recommendation) -> dict[str, Any]:
    """The same as plain data; `seconds` are by variation, the other figures medians."""
    reference = reference_of(outcome.forecasts)
    recorded = outcome.recorded
    return {
        "simulated": True,
        "agents": len(outcome.forecasts[0].predictions[0].work),
        "variations": list(outcome.variations),
        "reference": reference.name,
        "settings": [_plain(forecast, reference) for forecast in outcome.forecasts],
        "recorded": None if recorded is None else {
            "run": recorded.name,
            "seconds": recorded.seconds,
            "policy": recorded.policy,
            "pool_tokens": list(recorded.pools),
            "simulated_seconds": recorded.own.predictions[0].seconds if recorded.own is not None else None,
            "agents_left_out": recorded.left_out,
            "costs": "named" if recorded.fit is None else "fitted",
            "prefill_error": recorded.fit.prefill_error if recorded.fit is not None else None,
            "decode_error": recorded.fit.decode_error if recorded.fit is not None else None,
        },
        "recommended": best.best.name,
        "next": best.second.name if best.second is not None else None,
        "margins": list(best.margins),
        "sure": best.sure,
        "why": best.text(outcome.of),
        "left_out": LEFT_OUT,
    }  # fmt: skip


def _cells(forecast: Forecast, reference: Forecast) -> Iterator[str]:
    low, high = min(forecast.seconds), max(forecast.seconds)
    figures = {name: forecast.median(name) or 0.0 for name in _FIGURES}
    speed_up = compare(reference, forecast).speed_up
    yield f"{forecast.median_seconds:,.1f} ({low:,.0f}–{high:,.0f})"
    yield "–" if forecast.gpu_hours is None else f"{forecast.gpu_hours:.2f}"
    yield "other work" if speed_up is None else f"{speed_up:.2f}"
    yield f"{figures['device_hit_rate']:.2f}"
    yield f"{figures['host_hit_rate']:.2f}"
    yield f"{amount(figures['recomputed_tokens'])} ({figures['recomputed_share']:.0%})"
    yield amount(figures["evicted_tokens"])
    yield f"{figures['retractions']:.0f}"
    yield "–" if forecast.median("window_max") is None else f"{figures['window_mean']:.1f}, {figures['window_max']:.0f}"
    yield f"{figures['cuts']:.0f}"


def _plain(forecast: Forecast, reference: Forecast) -> dict[str, Any]:
    comparison = compare(reference, forecast)
    return {
        "name": forecast.name,
        "hardware": forecast.hardware,
        "seconds": forecast.seconds,
        "seconds_median": forecast.median_seconds,
        "gpu_hours": forecast.gpu_hours,
        "oversized": forecast.oversized,
        "speed_up": comparison.speed_up,
        "other_work": list(comparison.differences),
        **{name: forecast.median(name) for name in _FIGURES},
    }
