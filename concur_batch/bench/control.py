"""`make bench-control`: what control costs, and that it stays off the critical path of agents that hold a place.

Four parts: the core in one process; the controller through Ray, under hosts without engine and tools; a real run,
whose controller counts every message; and the engine's batches without a window and with one that never binds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from concur_batch.bench.composition import Composition, composition, simulated_batches, watched_run
from concur_batch.bench.crowd import ORDERS, drive
from concur_batch.bench.load import engine_server, mock_server
from concur_batch.bench.metered import Load
from concur_batch.bench.round_trip import Trip, measure_trips

_AGENTS = 10_000
_WINDOW = 500
_TURNS = 10
# The cost of a decision at `_AGENTS` over that at this many tells what grows with the agents: 1 is what it should be.
_FEWER_AGENTS = 2500
_HOSTS = 5  # as many as a run of `_AGENTS` would have
_LOADS = (
    Load("burst", _AGENTS, 2 * _AGENTS),
    Load("paced", _AGENTS, 2 * _AGENTS, arrivals_per_second=1000.0),
    Load("window", _AGENTS, _WINDOW, _TURNS, generation_seconds=0.05, tool_seconds=0.05),
)
_RUN_AGENTS = 4000
_PAIRS = 5
_PAIR_AGENTS = 100
_MOST_APART = 0.05
_POINTS = 8  # of a queue's length over time


def core_table(agents: int, fewer_agents: int, window: int) -> Table:
    """Part 1."""
    table = _table(
        f"1. The core in one process: {agents:,} agents arrive at once, window {window}, {_TURNS} turns, cuts in half",
        ("next is", "events/s", "decisions/s", "take p50", "p99", f"mean / at {fewer_agents:,}", "period p50", "p99"),
    )
    for order in ORDERS:
        small, account = (drive(count, _TURNS, window, order, time.perf_counter) for count in (fewer_agents, agents))
        total_seconds = sum(account.take_seconds)
        growth = np.mean(account.take_seconds) / np.mean(small.take_seconds)
        table.add_row(
            order.name,
            f"{len(account.take_seconds) / total_seconds:,.0f}",
            f"{account.decisions / (total_seconds + sum(account.period_seconds)):,.0f}",
            *(f"{_quantile(account.take_seconds, share) * 1e6:,.0f} us" for share in (0.5, 0.99)),
            f"{growth:.1f}",
            *(f"{_quantile(account.period_seconds, share) * 1e3:.1f} ms" for share in (0.5, 0.99)),
        )
    return table


def trip_table(trips: Sequence[Trip], hosts: int) -> Table:
    """Part 2."""
    table = _table(
        f"2. Through Ray: a controller and {hosts} hosts, {trips[0].load.agents:,} agents a load",
        ("load", "decisions/s", "report to permit p50", "p99", "place empty p50", "p99", "controller CPU/1,000 turns"),
    )
    for trip in trips:
        load, vacant = trip.load, trip.vacant_seconds
        binds = load.cap < load.agents  # a permit then comes with a place, and that is what is waited for
        table.add_row(
            f"{load.name}, cap {load.cap:,}",
            f"{load.agents / trip.seconds:,.0f}",
            *("" if binds else f"{_quantile(trip.report_seconds, share) * 1e3:.1f} ms" for share in (0.5, 0.99)),
            *(f"{_quantile(vacant, share) * 1e3:.1f} ms" if binds else "" for share in (0.5, 0.99)),
            f"{trip.cpu_seconds / (load.agents * load.turns) * 1000:.3f} s",
        )
    return table


def queue_table(trips: Sequence[Trip]) -> Table:
    """Part 2, over time."""
    table = _table(
        "   Queues over time: agents without a permit / events that hosts have not got rid of",
        [trip.load.name for trip in trips],
    )
    points = [trip.queue[:: -(-len(trip.queue) // _POINTS)] for trip in trips]
    for row in zip_longest(*points):
        cells = ("" if point is None else f"{point[0]:g} s: {point[1]:,} / {point[2]:,}" for point in row)
        table.add_row(*cells)
    return table


def run_table(agents: int) -> tuple[Table, int]:
    """Part 3; and how many round trips the agents made that held a place, which is to be none."""
    table = _table(
        f"3. A real run: {agents:,} agents, {_TURNS} turns, engine and tools that answer at once, window never binds",
        ("what", "count", "a turn"),
    )
    with tempfile.TemporaryDirectory(prefix="concur-control-") as directory, mock_server(_TURNS, "work", {}) as url:
        overrides = {
            "agent": {"limits": {"turns": 2 * _TURNS}},
            "tools": {"kind": "synthetic", "observation_words": [20, 20]},
            "control": {"policy": "agent_cap", "cap": agents},
        }
        watched = watched_run(Path(directory), agents, url, overrides)
        turns = watched.run.table("turns", columns=["turn"]).num_rows
        rows = watched.run.table("control", columns=["admitted_in_period", "resumed_in_period"]).to_pylist()
    counts = watched.counts
    asked = sum(int(counts.get(kind, 0)) for kind in ("boundary", "large", "down", "yield"))
    permits = sum(row["admitted_in_period"] + row["resumed_in_period"] for row in rows)
    for name, count in {
        "turns": turns,
        "events of agents that hold a place (a round trip each)": asked,
        "arrivals": int(counts["arrive"]),
        "ends": int(counts["release"]),
        "permits": permits,
        "report calls, which carry the events of a host": int(counts["reports"]),
        "beat calls, which nobody waits for": int(counts["beats"]),
    }.items():
        table.add_row(name, f"{count:,}", f"{count / turns:.4f}")
    table.add_row("beat calls a second", f"{counts['beats'] / counts['seconds']:.1f}", "")
    table.add_row("controller CPU s / 1,000 turns", f"{counts['cpu_seconds'] / turns * 1000:.3f}", "")
    table.add_row("  of that of the run and all its start-up", f"{counts['cpu_seconds'] / watched.cpu_seconds:.1%}", "")
    return table, asked


def composition_table(pairs: int, agents: int) -> tuple[Table, dict[str, float]]:
    """Part 4, live: pairs of runs on simulated servers of their own, in real time; and the ratios over all pairs."""
    table = _table(
        f"4. Running requests, {agents} agents, simulated servers: no window / the law's, held wide open",
        ("pair", "periods", "mean", "ratio", "p95", "ratio"),
    )
    found: list[tuple[Composition, Composition]] = []
    for pair in range(pairs):
        free, wide = (
            _sampled(agents, policy)
            for policy in ({"policy": "none"}, {"policy": "concur", "initial_window": agents, "min_window": agents})
        )
        found.append((free, wide))
        table.add_row(
            f"{pair + 1}",
            f"{free.periods} / {wide.periods}",
            f"{free.mean:.1f} / {wide.mean:.1f}",
            f"{wide.mean / free.mean:.3f}",
            f"{free.p95:.0f} / {wide.p95:.0f}",
            f"{wide.p95 / free.p95:.3f}",
        )
    means, p95s = ([[getattr(one, name) for one in pair] for pair in found] for name in ("mean", "p95"))
    table.add_section()
    table.add_row("all", "", *_overall(means, ".1f"), *_overall(p95s, ".0f"))
    table.add_row("spread of the runs without", "", *_spread(means), *_spread(p95s))
    return table, {"mean": _ratio(means), "p95": _ratio(p95s)}


def _sampled(agents: int, policy: Mapping[str, object]) -> Composition:
    engine = {"kind": "simulated", "pool_tokens": 400_000, "time_scale": 6.0}
    overrides = {
        "engine": {**engine, "synthetic": {"turns": [_TURNS, _TURNS], "output_words": [16, 32]}},
        "agent": {"limits": {"turns": 2 * _TURNS}},
        "tools": {"kind": "synthetic", "wait_seconds": [0.2, 0.6], "observation_words": [20, 20]},
        "control": {**policy, "period_seconds": 0.1},
    }
    with tempfile.TemporaryDirectory(prefix="concur-control-") as directory:
        watched = watched_run(Path(directory), agents, "", overrides)
        return composition(watched.run.table("control").to_pylist())


def _overall(pairs: Sequence[Sequence[float]], digits: str) -> tuple[str, str]:
    """The mean of all runs of each side, and their ratio."""
    free, wide = (float(np.mean([pair[side] for pair in pairs])) for side in (0, 1))
    return f"{free:{digits}} / {wide:{digits}}", f"{_ratio(pairs):.3f}"


def _ratio(pairs: Sequence[Sequence[float]]) -> float:
    free, wide = (float(np.mean([pair[side] for pair in pairs])) for side in (0, 1))
    return wide / free


def _spread(pairs: Sequence[Sequence[float]]) -> tuple[str, str]:
    """How far apart the runs without a window are among themselves: what no ratio above can be finer than."""
    free = [pair[0] for pair in pairs]
    return "", f"{(max(free) - min(free)) / float(np.mean(free)):.1%}"


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share))


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", min_width=len(title))  # else the title is wrapped
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def main() -> None:
    """Measure and print; fail where the controller gets into the way: a round trip of an agent that holds a place, or
    other batches at the engine."""
    console = Console(width=140)
    console.print(core_table(_AGENTS, _FEWER_AGENTS, _WINDOW))
    with tempfile.TemporaryDirectory(prefix="concur-control-") as directory:
        with engine_server(Path(directory), {"synthetic": {}}) as url:
            trips = measure_trips(_LOADS, _HOSTS, url)
    console.print(trip_table(trips, _HOSTS))
    console.print(queue_table(trips))
    table, round_trips = run_table(_RUN_AGENTS)
    console.print(table)
    requests, same = simulated_batches(agents=60, turns=6)
    verdict = "scheduled at the same moments in the same order" if same else "NOT scheduled alike"
    console.print(f"4. Simulator, {requests} requests, without a window and with one that never binds: {verdict}")
    table, ratios = composition_table(_PAIRS, _PAIR_AGENTS)
    console.print(table)
    apart = [f"{name} {ratio:.3f}" for name, ratio in ratios.items() if abs(ratio - 1) > _MOST_APART]
    if round_trips or not same or apart:
        sys.exit(f"in the way: {round_trips} round trips, simulated batches alike: {same}, live batches apart: {apart}")


if __name__ == "__main__":
    main()
