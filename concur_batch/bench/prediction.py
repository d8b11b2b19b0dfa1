"""What a simulated batch predicts of a real one: a few figures, and the work that was done. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concur_batch.bench.batch import BatchResult
from concur_batch.bench.same_work import work_of

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Figures of one simulated batch; shares are of prompt tokens, but `recomputed_share` of the computed ones.

    The window is the sum of those of all pools, None without one; `work` are the agents' rows for `same_work`.
    `most_paused_seconds` are of one agent, in all its pauses; `waiting_seconds` of each, until its admission too.
    """

    seconds: float
    device_hit_rate: float
    host_hit_rate: float
    recomputed_tokens: int
    recomputed_share: float
    evicted_tokens: int
    retractions: int
    window_mean: float | None
    window_max: int | None
    cuts: int
    pauses: int
    most_paused_seconds: float
    waiting_seconds: tuple[float, ...]
    work: tuple[Row, ...]


def predict(result: BatchResult) -> Prediction:
    """The figures of a batch that has been simulated."""
    counters = list(result.counters.values())
    computed = sum(each.prefill_input for each in counters)
    device = sum(each.prefill_device_hit for each in counters)
    host = sum(each.prefill_host_hit for each in counters)
    looked_up = computed + device + host
    recomputed = sum(row["recomputed_tokens"] for row in result.agents)
    windows = _windows(result.control)
    return Prediction(
        seconds=result.seconds,
        device_hit_rate=_share(device, looked_up),
        host_hit_rate=_share(host, looked_up),
        recomputed_tokens=recomputed,
        recomputed_share=_share(recomputed, computed),
        evicted_tokens=sum(each.evicted for each in counters),
        retractions=sum(each.retracted_requests for each in counters),
        window_mean=sum(windows) / len(windows) if windows else None,
        window_max=max(windows, default=None),
        cuts=sum(_is_cut(row) for row in result.control),
        pauses=sum(row["pauses"] for row in result.agents),
        most_paused_seconds=max((row["paused_seconds"] for row in result.agents), default=0.0),
        waiting_seconds=tuple(row["pending_seconds"] + row["paused_seconds"] for row in result.agents),
        work=work_of(result.agents),
    )


def _windows(control: Sequence[Row]) -> list[int]:
    """Of each period, over all pools; none where there is no window."""
    sums: dict[float, int] = {}
    for row in control:
        if row["window_after"] is not None:
            sums[row["seconds"]] = sums.get(row["seconds"], 0) + row["window_after"]
    return list(sums.values())


def _is_cut(row: Row) -> bool:
    before, after = row["window_before"], row["window_after"]
    return before is not None and after is not None and after < before


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
