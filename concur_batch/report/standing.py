"""How a run stands: agents by state, who waits longest, who lags, and the windows; live or as it ended. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from concur_batch.driver.snapshot import control_notes
from concur_batch.report.columns import columns
from concur_batch.report.text import amount, duration, share, window_width

Row = Mapping[str, Any]

STATES = ("active", "tool_wait", "checking", "paused", "queued", "pending")
WAITING = ("paused", "queued", "pending")
# A straggler has worked so many times as long as the median agent.
STRAGGLER_FACTOR = 3.0
_SHOWN = 5


def standing(
    manifest: Row, ended: Iterable[Row], control: Iterable[Row], live: Row | None = None, note: str = ""
) -> dict[str, Any]:
    """One JSON object that says all.

    `ended` are the final rows of agents, `control` the last control row of each pool, `live` the controller's picture
    of a run that goes on. `busy_seconds` of an agent are those that it generated and that its tools ran, no waits.
    """
    final = [_ended(row) for row in ended]
    known = {agent["agent_id"] for agent in final}
    agents = [_running(row) for row in live["agents"] if row["agent_id"] not in known] if live is not None else []
    begun = [agent["busy_seconds"] for agent in (*final, *agents) if agent["busy_seconds"] > 0]
    median_seconds = median(begun) if begun else None
    lagging = [
        agent
        for agent in (agents if live is not None else final)
        if median_seconds is not None and agent["busy_seconds"] > STRAGGLER_FACTOR * median_seconds
    ]
    states = Counter(agent["state"] for agent in agents)
    return {
        "run": manifest["run"],
        "live": live is not None,
        "status": manifest["status"],
        "suspended": live is not None and live["control"]["suspended"],
        "policy": manifest["workload"]["control"]["policy"],
        "seconds": live["seconds"] if live is not None else manifest.get("seconds"),
        "agents": manifest["agents"],
        "ended": dict(Counter(agent["state"] for agent in final)),
        "states": {state: states[state] for state in STATES},
        "waits": _longest([agent for agent in agents if agent["state"] in WAITING], "state_seconds"),
        "stragglers": _longest(lagging, "busy_seconds"),
        "busy_seconds_median": median_seconds,
        "windows": [_window(row) for row in sorted(control, key=lambda row: str(row["pool"]))],
        "notes": [*_notes(manifest, live), *([note] if note else [])],
        "running": agents,
    }


def _running(row: Row) -> dict[str, Any]:
    """An agent as its host tells it."""
    now_seconds = row["state_seconds"] if row["state"] not in WAITING else 0.0
    return {**row, "busy_seconds": row["active_seconds"] + now_seconds}


def _ended(row: Row) -> dict[str, Any]:
    """An agent from its final row; its state is how it ended."""
    return {
        "agent_id": row["agent_id"],
        "attempt": row["attempt"],
        "state": row["status"],
        "state_seconds": None,
        "pool": row["replica"],
        "turns": row["turns"],
        "context_tokens": row["context_tokens"],
        "busy_seconds": row["generation_seconds"] + row["tool_seconds"],
    }


def _longest(agents: Iterable[dict[str, Any]], figure: str) -> list[dict[str, Any]]:
    return sorted(agents, key=lambda agent: -agent[figure])[:_SHOWN]


def _window(row: Row) -> dict[str, Any]:
    return {
        "pool": row["pool"],
        "window": row["window_after"],
        "window_tokens": row["window_tokens"],
        "footprint_tokens": row["footprint_tokens"],
        "places_held": row["places_held"],
        "waiting": sum(row[state] for state in WAITING),
        "usage": row["usage"],
        "hit_rate": row["hit_rate"],
        "state": row["pool_state"],
    }


def _notes(manifest: Row, live: Row | None) -> list[str]:
    if live is None:
        return []
    silent = [f"{host} does not answer: its agents are missing here" for host in live["silent_hosts"]]
    return [*control_notes(live["control"]), *silent]


def overview_view(picture: Row) -> Group:
    """Everything, for the terminal; each part only where it has something to tell."""
    parts: list[RenderableType] = [*_head(picture)]
    if picture["windows"]:
        parts += [Text(), _windows(picture["windows"])]
    if picture["waits"]:
        parts += [Text(), Text("longest waits", style="bold"), _agents(picture["waits"])]
    if picture["stragglers"]:
        middle = picture["busy_seconds_median"]
        title = f"stragglers: busy more than {STRAGGLER_FACTOR:g} times the median of {duration(middle)}"
        parts += [Text(), Text(title, style="bold"), _agents(picture["stragglers"])]
    return Group(*parts)


def list_view(picture: Row, states: Sequence[str]) -> Group:
    """The agents of these states that have not ended, longest in their state first within each state."""
    found = [agent for agent in picture["running"] if agent["state"] in states]
    found.sort(key=lambda agent: (STATES.index(agent["state"]), -agent["state_seconds"]))
    parts: list[RenderableType] = [*_head(picture)]
    return Group(*parts, *((Text(), _agents(found)) if found else ()))


def _head(picture: Row) -> list[Text]:
    status = picture["status"]
    if picture["live"]:
        status = "paused" if picture["suspended"] else "running"
    elif status in ("starting", "running"):  # nobody could write what became of it
        status = "killed"
    time = (
        "" if picture["seconds"] is None else f" {'for' if picture['live'] else 'after'} {duration(picture['seconds'])}"
    )
    ended = sum(picture["ended"].values())
    how = ", ".join(f"{count} {status}" for status, count in sorted(picture["ended"].items()))
    line = f"{picture['run']}: {status}{time}, policy {picture['policy']}, {ended}/{picture['agents']} agents ended"
    lines = [Text(line + (f" ({how})" if how else ""), style="bold")]
    if picture["live"]:
        counts = picture["states"].items()
        shown = [f"{name.replace('_', ' ')} {count}" for name, count in counts if count or name != "queued"]
        lines.append(Text("   ".join(shown)))
    return lines + [Text(note, style="yellow") for note in picture["notes"]]


def _windows(windows: Iterable[Row]) -> Table:
    table = columns(("pool", "W", "held", "waiting", "U", "H", "state"), right=("W", "held", "waiting", "U", "H"))
    for window in windows:
        width = window_width(window["window"], window["window_tokens"], window["footprint_tokens"])
        figures = (
            str(window["places_held"]),
            str(window["waiting"]),
            share(window["usage"]),
            share(window["hit_rate"]),
        )
        table.add_row(window["pool"], width, *figures, window["state"])
    return table


def _agents(agents: Iterable[Row]) -> Table:
    table = columns(
        ("agent", "state", "for", "pool", "turns", "tokens", "busy"), right=("for", "turns", "tokens", "busy")
    )
    for agent in agents:
        since = "" if agent["state_seconds"] is None else duration(agent["state_seconds"])
        table.add_row(
            Text(agent["agent_id"]),
            agent["state"].replace("_", " "),
            since,
            agent["pool"] or "–",
            str(agent["turns"]),
            amount(agent["context_tokens"]),
            duration(agent["busy_seconds"]),
        )
    return table
