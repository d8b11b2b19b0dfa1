"""One agent's life, as lines in order of time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
_SHOWN_CHARACTERS = 80


def tell(attempts: Sequence[Row], turns: Sequence[Row], tools: Sequence[Row]) -> Iterator[tuple[float, str]]:
    """(seconds since the run's start, what happened) from an agent's rows of the three tables.

    An agent that has not ended has no row in `attempts`, but its turns are told.
    """
    numbers = sorted({row["attempt"] for row in (*attempts, *turns)})
    for number in numbers:
        own = sorted((row for row in turns if row["attempt"] == number), key=lambda row: row["turn"])
        ends = [row for row in attempts if row["attempt"] == number]
        if len(numbers) > 1:
            yield (ends[0]["started_seconds"] if ends else own[0]["started_seconds"], f"attempt {number}")
        for turn in own:
            calls = [row for row in tools if row["attempt"] == number and row["turn"] == turn["turn"]]
            yield from _turn(turn, sorted(calls, key=lambda row: row["call"]))
        for end in ends:
            yield end["ended_seconds"], _end(end)
        if not ends:
            yield own[-1]["ended_seconds"], "has not ended"


def _turn(turn: Row, calls: Sequence[Row]) -> Iterator[tuple[float, str]]:
    for name, what in (
        ("pending_seconds", "waited for its first admission"),
        ("paused_seconds", "paused"),
        ("queue_seconds", "waited for a permit"),
    ):
        if turn[name] >= 0.001:
            yield turn["started_seconds"], f"{what}, {turn[name]:.2f} s"
    recomputed = f", {turn['recomputed_tokens']:,} computed again" if turn["recomputed_tokens"] else ""
    retries = f", {turn['request_attempts']} tries" if turn["request_attempts"] > 1 else ""
    yield (
        turn["generation_started_seconds"],
        f"turn {turn['turn']}: generated {turn['output_tokens']} tokens in {turn['generation_seconds']:.2f} s on "
        f"{turn['input_tokens']:,}, of which {turn['cached_device_tokens'] + turn['cached_host_tokens']:,} were cached"
        f"{recomputed}{retries}",
    )
    if turn["action"] != "calls":
        yield turn["generation_started_seconds"] + turn["generation_seconds"], f"its action: {turn['action']}"
    for call in calls:
        waited = f", after {call['queue_seconds']:.2f} s in the queue" if call["queue_seconds"] >= 0.01 else ""
        yield (
            call["started_seconds"],
            f"{call['name']} {_short(call['arguments'])}: {call['status']}, {call['seconds']:.2f} s{waited}",
        )


def _end(agent: Row) -> str:
    reward = "" if agent["reward"] is None else f", reward {agent['reward']:g}"
    error = f": {_short(agent['error'])}" if agent["error"] else ""
    final = "" if agent["final"] else " (tried again)"
    return f"{agent['status']}, {agent['end_reason']}{error}{reward}{final}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 1] + "…"
