"""A run's agents as a list, the ones that one would look at first before the others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rich.text import Text

from concur_batch.report.columns import aligned
from concur_batch.report.printable import all_printable, one_line
from concur_batch.report.text import amount, duration

Row = Mapping[str, Any]

UNFINISHED = "unfinished"
# What went wrong, before what stopped at a limit, before what goes on, before what was wanted so.
STATUSES = ("failed", "oversized", "limit", UNFINISHED, "finished", "cancelled")
_COLUMNS = ("agent", "status", "reward", "turns", "calls", "out", "in", "context", "time", "why")
_ERROR_CHARACTERS = 60


def _interest(row: Row) -> tuple[Any, ...]:
    reward = row["reward"] if row["reward"] is not None else 2.0  # a reward is at most 1
    return STATUSES.index(row["status"]), reward, -row["seconds"]


ORDERS: Mapping[str, Callable[[Row], Any]] = {
    "interest": _interest,
    "reward": lambda row: (row["reward"] is None, row["reward"]),
    "turns": lambda row: -row["turns"],
    "tokens": lambda row: -row["output_tokens"],
    "time": lambda row: -row["seconds"],
    "agent": lambda row: row["agent_id"],
}
"""What a list may be sorted by; `interest`: by status in the order of STATUSES, then the lowest reward, then the
longest time."""


def agents(final: Iterable[Row], under_way: Iterable[Row], order: str) -> list[dict[str, Any]]:
    """One row an agent that has begun, sorted. `final` are final rows of the table `agents`; `under_way` tell of agents
    without one: `agent_id`, `attempt`, `turns`, token counts, when their attempt began and its last turn ended."""
    found = [
        {
            **{name: row[name] for name in ("agent_id", "attempt", "status", "end_reason", "error", "reward", "turns")},
            **{name: row[name] for name in ("tool_calls", "input_tokens", "output_tokens", "context_tokens")},
            "seconds": row["ended_seconds"] - row["started_seconds"],
        }
        for row in final
    ]
    found += [
        {
            **{name: row[name] for name in ("agent_id", "attempt", "turns")},
            **{name: row[name] for name in ("input_tokens", "output_tokens", "context_tokens")},
            "status": UNFINISHED,
            **dict.fromkeys(("end_reason", "error", "reward", "tool_calls")),
            "seconds": row["ended_seconds"] - row["started_seconds"],
        }
        for row in under_way
    ]
    return sorted(found, key=lambda row: (ORDERS[order](row), row["agent_id"]))


def agents_lines(run: str, total: int, begun: int, rows: Iterable[Row]) -> Iterator[Text]:
    """The list in the terminal; of `total` agents so many have `begun`."""
    rows = all_printable(list(rows))
    counts = Counter(row["status"] for row in rows)
    told = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    left = total - begun
    waiting = f"; {left} {'has' if left == 1 else 'have'} not begun" if left else ""
    yield Text(f"{one_line(run)}: {told or 'no agents'}{waiting}", style="bold")
    yield Text()
    head, *lines = aligned([_COLUMNS, *map(_cells, rows)], range(2, 9))
    yield Text(head, style="dim")
    for row, line in zip(rows, lines, strict=True):
        yield Text(line, style="red" if row["status"] == "failed" else "")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        one_line(row["agent_id"]),
        row["status"],
        "" if row["reward"] is None else f"{row['reward']:g}",
        str(row["turns"]),
        "" if row["tool_calls"] is None else str(row["tool_calls"]),
        *(amount(row[name]) for name in ("output_tokens", "input_tokens", "context_tokens")),
        duration(row["seconds"]),
        _why(row),
    )


def _why(row: Row) -> str:
    error = " ".join((row["error"] or "").split())
    if len(error) > _ERROR_CHARACTERS:
        error = f"{error[: _ERROR_CHARACTERS - 1]}…"
    return ": ".join(part for part in (row["end_reason"], error) if part)
