"""A run's agents as a list: in which order, and what a row tells."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from concur_batch.agent.spec import Status
from concur_batch.report.agents import STATUSES, UNFINISHED, agents, agents_lines
from concur_batch.report.columns import aligned
from tests.cli.looked_at_run import end
from tests.trace.trace_rows import as_stored

Row = dict[str, Any]

FINAL = [as_stored("agents", row) for row in (
    end("good/0", "finished", "submit", 9, reward=1.0),
    end("bad/0", "finished", "submit", 2, reward=0.0),
    end("worse/0", "finished", "submit", 3, reward=0.0),
    end("unjudged/0", "finished", "submit", 4),
    end("gone/0", "cancelled", "cancelled", 1),
    end("long/0", "limit", "turns", 8, reward=0.0),
    end("broken/0", "failed", "EngineError", 1, error="no\n\x1b[31manswer" + "x" * 90),
    end("huge/0", "oversized", "pool", 0),
)]  # fmt: skip
UNDER_WAY = [
    {"agent_id": "wait/0", "attempt": 1, "turns": 5, "input_tokens": 500, "output_tokens": 50, "context_tokens": 550,
     "started_seconds": 1.0, "ended_seconds": 3.0},
]  # fmt: skip


def names(order: str) -> list[str]:
    return [row["agent_id"].removesuffix("/0") for row in agents(FINAL, UNDER_WAY, order)]


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("interest", ["broken", "huge", "long", "wait", "worse", "bad", "good", "unjudged", "gone"]),
        ("reward", ["bad", "long", "worse", "good"]),
        ("turns", ["good", "long", "wait", "unjudged"]),
        ("tokens", ["good", "long", "wait", "unjudged"]),
        ("time", ["good", "long", "unjudged", "worse"]),
        ("agent", ["bad", "broken", "gone", "good"]),
    ],
)
def test_orders(order: str, first: list[str]) -> None:
    assert names(order)[: len(first)] == first


def shown(rows: list[Row], total: int, begun: int) -> list[str]:
    return [line.plain for line in agents_lines("r", total, begun, rows)]


def test_the_list_tells_each_agent_and_how_many_are_left() -> None:
    lines = shown(agents(FINAL, UNDER_WAY, "interest"), 12, 9)
    assert lines[0] == (
        "r: 1 failed, 1 oversized, 1 limit, 1 unfinished, 4 finished, 1 cancelled; 3 have not begun"
    )  # fmt: skip
    assert lines[3].split(maxsplit=8)[:8] == ["broken/0", "failed", "1", "1", "10", "100", "110", "0:02"]
    assert lines[3].endswith(f"EngineError: no ␛[31manswer{'x' * 45}…")
    assert lines[6].split() == ["wait/0", "unfinished", "5", "50", "500", "550", "0:02"]
    assert lines[8].split() == ["bad/0", "finished", "0", "2", "2", "20", "200", "220", "0:04", "submit"]
    assert shown([], 3, 0)[0] == "r: no agents; 3 have not begun"


def test_columns_are_as_wide_as_their_widest_cell_in_a_terminals_cells() -> None:
    rows = [("a", "n", "x"), ("漢字", "10", ""), ("b", "9", "end")]
    assert list(aligned(rows, {1})) == ["a      n  x", "漢字  10", "b      9  end"]


def test_every_status_has_its_place() -> None:
    assert sorted(STATUSES) == sorted([*get_args(Status), UNFINISHED])
