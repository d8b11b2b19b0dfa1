"""One agent's life, as lines in order of time. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

Row = Mapping[str, Any]
_SHOWN_CHARACTERS = 80
_SHOWN_SECONDS = 0.001


def tell(
    attempts: Sequence[Row], turns: Sequence[Row], tools: Sequence[Row], control: Sequence[Row]
) -> Iterator[tuple[float, str]]:
    """(seconds since the run's start, what happened) from an agent's rows of the three tables.

    `control` are the run's control rows, in any order: they say why an agent was paused, as far as that is known. An
    agent that has not ended has no row in `attempts`, but its turns are told.
    """
    pools: dict[str, list[Row]] = {}
    for row in sorted(control, key=_moment):
        pools.setdefault(row["pool"], []).append(row)
    numbers = sorted({row["attempt"] for row in (*attempts, *turns)})
    for number in numbers:
        own = sorted((row for row in turns if row["attempt"] == number), key=lambda row: row["turn"])
        ends = [row for row in attempts if row["attempt"] == number]
        if len(numbers) > 1:
            yield (ends[0]["started_seconds"] if ends else own[0]["started_seconds"], f"attempt {number}")
        pool = own[0]["replica"] if own else ""
        for before, turn in pairwise((None, *own)):
            assert turn is not None, "only the first has none before it"
            home, there = pools.get(pool, []), pools.get(turn["replica"], [])
            if turn["paused_seconds"] >= _SHOWN_SECONDS:
                yield turn["started_seconds"], _pause(before, turn, home, there)
            if turn["replica"] != pool:
                yield turn["generation_started_seconds"], f"moved from pool {pool} to {turn['replica']}"
                pool = turn["replica"]
            calls = [row for row in tools if row["attempt"] == number and row["turn"] == turn["turn"]]
            yield from _turn(turn, sorted(calls, key=lambda row: row["call"]), there)
        for end in ends:
            yield end["ended_seconds"], _end(end)
        if not ends:
            yield own[-1]["ended_seconds"], "has not ended"


def _turn(turn: Row, calls: Sequence[Row], there: Sequence[Row]) -> Iterator[tuple[float, str]]:
    for name, what in (
        ("pending_seconds", "waited to be admitted anew" if turn["turn"] else "waited for its first admission"),
        ("queue_seconds", "waited for a permit"),
    ):
        if turn[name] >= _SHOWN_SECONDS:
            why = _why_waited(turn, there) if name == "pending_seconds" else ""
            yield turn["started_seconds"], f"{what}, {turn[name]:.2f} s" + (f": {why}" if why else "")
    recomputed = f", {turn['recomputed_tokens']:,} computed again" if turn["recomputed_tokens"] else ""
    retries = f", {turn['request_attempts']} tries" if turn["request_attempts"] > 1 else ""
    yield (
        turn["generation_started_seconds"],
        f"turn {turn['turn']}: generated {turn['output_tokens']} tokens in {turn['generation_seconds']:.2f} s on "
        f"{turn['input_tokens']:,}, of which {_cached(turn)} were cached"
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


def _cached(turn: Row) -> str:
    if turn["cached_device_tokens"] is None:
        return "nobody tells how many"
    return f"{turn['cached_device_tokens'] + turn['cached_host_tokens']:,}"


def _why_waited(turn: Row, rows: Sequence[Row]) -> str:
    """By the last period of the wait, where the window bounds tokens."""
    began_seconds = turn["started_seconds"]
    ended_seconds = began_seconds + turn["pending_seconds"]
    begin, end = (bisect_right(rows, seconds, key=_moment) for seconds in (began_seconds, ended_seconds))
    last = rows[begin:end][-1:]
    if not last or last[0]["window_tokens"] is None:
        return ""
    if last[0]["intake_tokens"] == 0:
        return f"requests waited in the engine at {last[0]['seconds']:.2f} s, and no more came in than left"
    return _inside(last[0])


def _overfull(row: Row) -> bool:
    return row["window_tokens"] is not None and row["footprint_tokens"] > row["window_tokens"]


def _inside(row: Row) -> str:
    tokens = f"{row['footprint_tokens']:,} tokens were inside of {row['window_tokens']:,}"
    return f"{tokens} at {row['seconds']:.2f} s, with a turn more of each to come"


def _pause(before: Row | None, turn: Row, home: Sequence[Row], there: Sequence[Row]) -> str:
    """A pause between two turns. `home` and `there`: rows of the pool that it was in and of the one where it goes
    on."""
    why = _why_paused(before, turn, home)
    # Agents are let in beyond the window only as a period ends.
    ended_seconds = turn["started_seconds"] + turn["paused_seconds"]
    last = there[: bisect_right(there, ended_seconds, key=_moment)][-1:]
    forced = last[0]["forced_in_period"] if last else 0
    return (
        f"paused, {turn['paused_seconds']:.2f} s"
        + (f": {why}" if why else "")
        + (f"; as it ended, {forced} were let in beyond the window" if forced else "")
    )


def _why_paused(before: Row | None, turn: Row, rows: Sequence[Row]) -> str:
    """From the periods around the pause's begin, and those of the tool wait before; empty where they do not tell."""
    begin = bisect_right(rows, turn["started_seconds"], key=_moment)
    around = rows[max(begin - 1, 0) : begin + 1]
    states = {row["pool_state"] for row in around}
    if "suspended" in states:
        return "the run was suspended"
    if states & {"closed", "suspect"}:
        return "its pool was down"
    if before is not None and (given_up := _why_given_up(before, turn, rows)):
        return given_up
    marking = list(takewhile(lambda row: row["marked"], reversed(rows[:begin])))
    if marking and marking[-1]["window_tokens"] is not None:
        # By the last period in which there were too many; marks then wait for their agents' boundaries.
        return _inside(next((row for row in marking if _overfull(row)), marking[-1]))
    bounded = [row for row in rows[:begin] if None not in (row["window_before"], row["window_after"])]
    cut = next((row for row in reversed(bounded) if row["window_after"] < row["window_before"]), None)
    if cut is not None and rows[begin - 1]["marked"]:
        return f"W went from {cut['window_before']} to {cut['window_after']} at {cut['seconds']:.2f} s"
    return ""


def _why_given_up(before: Row, turn: Row, rows: Sequence[Row]) -> str:
    """Whether the tool wait between the turns was longer than it may hold a place."""
    since_seconds = before["generation_started_seconds"] + before["generation_seconds"]
    until_seconds = turn["started_seconds"]
    begin, end = (bisect_right(rows, seconds, key=_moment) for seconds in (since_seconds, until_seconds))
    for row in rows[begin:end]:
        held_seconds = row["hold_seconds"]
        if held_seconds is not None and row["seconds"] - since_seconds >= held_seconds:
            waited_seconds = until_seconds - since_seconds
            return f"its tools took {waited_seconds:.2f} s, and a place was held for {held_seconds:.2f} s"
    return ""


def _moment(row: Row) -> float:
    seconds: float = row["seconds"]
    return seconds


def _end(agent: Row) -> str:
    reward = "" if agent["reward"] is None else f", reward {agent['reward']:g}"
    error = f": {_short(agent['error'])}" if agent["error"] else ""
    final = "" if agent["final"] else " (tried again)"
    return f"{agent['status']}, {agent['end_reason']}{error}{reward}{final}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 1] + "…"
