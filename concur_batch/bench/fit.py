"""Costs of an engine, fitted to the seconds that a run's turns tell. Pure.

A prefill batch is in the table once for each of its turns, and while the engine prefills, nobody decodes. So turns
whose prefills overlap count as one piece of prefill work, and what a turn's decoding lasted beyond such pieces went
into its steps, each shared with all that decoded at the same time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concur_batch.simulator.cost import CostModel

Row = Mapping[str, Any]
Floats = NDArray[np.float64]

# Columns of the turns table that a fit needs.
COLUMNS = (
    *("replica", "generation_started_seconds", "engine_queue_seconds", "engine_prefill_seconds"),
    *("engine_decode_seconds", "input_tokens", "output_tokens", "cached_device_tokens", "cached_host_tokens"),
)
_LEAST_TURNS = 10
_SAME_BATCH_SECONDS = 0.005  # turns of one prefill batch end theirs within


class CannotFit(ValueError):
    """The turns do not tell enough; one line."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`prefill_error` and `decode_error`: the sum of the absolute residuals over the sum of the seconds, of pieces of
    prefill work and of turns' decoding."""

    cost: CostModel
    turns: int
    prefill_error: float
    decode_error: float


def fit_costs(turns: Iterable[Row]) -> Fit:
    """Least squares with coefficients of zero or more: seconds of prefill by batches, computed tokens, pairs of
    tokens and cached tokens; seconds of decoding by steps, running requests and their KV. Raises CannotFit."""
    usable = [row for row in turns if all(row[name] is not None for name in COLUMNS)]
    if len(usable) < _LEAST_TURNS:
        raise CannotFit("its turns do not tell the engine's seconds")
    prefill_parts: list[tuple[Floats, Floats]] = []
    decode_parts: list[tuple[Floats, Floats]] = []
    for _, rows in itertools.groupby(sorted(usable, key=lambda row: row["replica"]), lambda row: row["replica"]):
        of_replica = list(rows)
        pieces = _prefill_pieces(of_replica)
        work = [[piece.batches, piece.tokens, piece.pairs, piece.cached_tokens] for piece in pieces]
        prefill_parts.append((np.array(work), np.array([piece.end - piece.start for piece in pieces])))
        decode_parts.append(_decode_work(of_replica, pieces))
    prefill, prefill_error = _solve(prefill_parts)
    decode, decode_error = _solve(decode_parts)
    if not (prefill.any() and decode.any()):
        raise CannotFit("the seconds that its turns tell do not grow with their work")
    cost = CostModel(
        prefill_step_seconds=float(prefill[0]),
        prefill_seconds_per_token=float(prefill[1]),
        prefill_seconds_per_token_pair=float(prefill[2]),
        prefill_seconds_per_cached_token=float(prefill[3]),
        decode_step_seconds=float(decode[0]),
        decode_seconds_per_request=float(decode[1]),
        decode_seconds_per_kv_token=float(decode[2]),
    )
    return Fit(cost, len(usable), prefill_error, decode_error)


@dataclass(slots=True)
class _Piece:
    """Prefill work without a gap, from `start` to `end`."""

    start: float
    end: float
    batches: float = 0.0
    tokens: float = 0.0
    pairs: float = 0.0
    cached_tokens: float = 0.0
    batch_end: float = -1.0


def _prefill_pieces(rows: Sequence[Row]) -> list[_Piece]:
    """The prefills of one engine, in order of time."""
    pieces: list[_Piece] = []
    for row in sorted(rows, key=_prefill_start):
        start = _prefill_start(row)
        end = start + row["engine_prefill_seconds"]
        if not pieces or start >= pieces[-1].end:
            pieces.append(_Piece(start, end))
        piece = pieces[-1]
        piece.end = max(piece.end, end)
        if abs(end - piece.batch_end) > _SAME_BATCH_SECONDS:
            piece.batches += 1
            piece.batch_end = end
        cached = row["cached_device_tokens"] + row["cached_host_tokens"]
        computed = row["input_tokens"] - cached
        piece.tokens += computed
        piece.cached_tokens += cached
        piece.pairs += computed * (cached + (computed + 1) / 2)
    return pieces


def _decode_work(rows: Sequence[Row], pieces: Sequence[_Piece]) -> tuple[Floats, Floats]:
    """For each turn: steps, steps times the requests that ran meanwhile, steps times their KV; and the seconds."""
    starts = np.array([_prefill_start(row) + row["engine_prefill_seconds"] for row in rows])
    seconds = np.array([row["engine_decode_seconds"] for row in rows])
    ends = starts + seconds
    steps = np.array([row["output_tokens"] - 1.0 for row in rows])
    kv_tokens = np.array([row["input_tokens"] + row["output_tokens"] / 2 for row in rows])
    prefilling = _covered(np.array([p.start for p in pieces]), np.array([p.end for p in pieces]), np.ones(len(pieces)))
    running, held = _covered(starts, ends, np.ones(len(rows))), _covered(starts, ends, kv_tokens)
    decoding = (steps > 0) & (seconds > 0)
    starts, ends, steps, seconds = starts[decoding], ends[decoding], steps[decoding], seconds[decoding]
    requests = (running(ends) - running(starts)) / seconds
    tokens = (held(ends) - held(starts)) / seconds
    own_seconds = np.maximum(0.0, seconds - (prefilling(ends) - prefilling(starts)))
    return np.stack([steps, steps * requests, steps * tokens], axis=1), own_seconds


def _covered(starts: Floats, ends: Floats, weights: Floats) -> Callable[[Floats], Floats]:
    """The function of a moment that sums, over all intervals, weight times how much of it lies before."""
    sides = []
    for moments in (starts, ends):
        order = np.argsort(moments)
        sorted_moments, sorted_weights = moments[order], weights[order]
        sides.append(
            (
                sorted_moments,
                np.concatenate([[0.0], np.cumsum(sorted_weights)]),
                np.concatenate([[0.0], np.cumsum(sorted_weights * sorted_moments)]),
            )
        )

    def before(moments: Floats) -> Floats:
        total = np.zeros(len(moments))
        for sign, (edges, weight, moment) in zip((1, -1), sides, strict=True):
            passed = np.searchsorted(edges, moments, side="right")
            total += sign * (weight[passed] * moments - moment[passed])
        return total

    return before


def _solve(parts: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, float]:
    """Least squares over all parts with coefficients of zero or more, and its relative error.

    The unknowns are few: the best of all subsets that come out above zero is the solution.
    """
    work, seconds = (np.concatenate(side) for side in zip(*parts, strict=True))
    scale = np.maximum(work.max(axis=0, initial=0.0), 1e-300)
    count = work.shape[1]
    best, least = np.zeros(count), float((seconds**2).sum())
    for size in range(1, count + 1):
        for columns in map(list, itertools.combinations(range(count), size)):
            found = np.linalg.lstsq(work[:, columns] / scale[columns], seconds, rcond=None)[0]
            residual = float(((work[:, columns] / scale[columns] @ found - seconds) ** 2).sum())
            if (found >= 0).all() and residual < least:
                best, least = np.zeros(count), residual
                best[columns] = found / scale[columns]
    total = float(seconds.sum())
    return best, float(np.abs(work @ best - seconds).sum()) / total if total else 0.0


def _prefill_start(row: Row) -> float:
    started: float = row["generation_started_seconds"] + row["engine_queue_seconds"]
    return started
