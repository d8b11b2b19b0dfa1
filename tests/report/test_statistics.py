"""The distributions of runs, beside the same figures worked out by hand and by numpy."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from concur_batch.report.statistics import statistics
from concur_batch.report.statistics_table import statistics_view
from concur_batch.report.text import histogram
from concur_batch.trace.manifest import read_manifest, write_manifest
from concur_batch.trace.reading import Run
from tests.cli.looked_at_run import write_run

Row = dict[str, Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Row:
    return statistics([Run(write_run(tmp_path_factory.mktemp("stats") / "r1"))])


def test_what_there_is_of_a_run(found: Row) -> None:
    (run,) = found["runs"]
    # Of seven turns hits are told: 60 of 100 tokens cached, 5 of 40 computed again.
    assert {name: run[name] for name in ("run", "agents", "ended", "turns", "tool_calls", "input_tokens")} == {
        "run": "r1", "agents": 6, "ended": 4, "turns": 8, "tool_calls": 6, "input_tokens": 800
    }  # fmt: skip
    assert (run["cached_tokens"], run["cached_share"]) == (420, 0.6)
    assert (run["recomputed_tokens"], run["recomputed_share"]) == (35, 0.125)
    assert (run["reward_mean"], run["rewarded"]) == (pytest.approx(1 / 3), 3)


def test_how_agents_ended(found: Row) -> None:
    ends = found["runs"][0]["ends"]
    assert [(way["status"], way["end_reason"], way["agents"], way["reward_mean"]) for way in ends] == [
        ("failed", "malformed", 1, None),
        ("finished", "answer", 1, 0.0),
        ("finished", "submit", 1, 1.0),
        ("limit", "turns", 1, 0.0),
    ]
    assert (ends[2]["turns_median"], ends[2]["output_tokens_median"]) == (2, 20)


def test_the_tools(found: Row) -> None:
    tools = {tool["tool"]: tool for tool in found["runs"][0]["tools"]}
    assert [*tools] == ["python", "read_file", "submit"]
    assert {name: tools["read_file"][name] for name in ("calls", "errors", "timeouts", "truncated", "seconds")} == {
        "calls": 4, "errors": 0, "timeouts": 0, "truncated": 1, "seconds": 1.0
    }  # fmt: skip
    assert (tools["python"]["errors"], tools["python"]["seconds_p50"]) == (1, 0.25)


def test_distributions_are_numpys(found: Row) -> None:
    (spread,) = found["distributions"]["turns"]
    turns = [2, 2, 1, 1]
    assert [spread[mark] for mark in ("p5", "p50", "p95")] == pytest.approx(np.percentile(turns, [5, 50, 95]).tolist())
    assert (spread["count"], spread["max"], spread["mean"]) == (4, 2, 1.5)
    assert spread["counts"] == [2, *[0] * 10, 2]
    assert [found["distributions"]["turn_wait_seconds"][0][mark] for mark in ("count", "max")] == [8, 2.0]
    assert found["distributions"]["reward"][0]["count"] == 3
    assert found["distributions"]["read_file_call_seconds"][0]["counts"] == [4, *[0] * 11]


def test_the_bars_of_several_runs_stand_for_the_same_values(tmp_path: Path) -> None:
    runs = [Run(write_run(tmp_path / name)) for name in ("a", "b")]
    found = statistics(runs)
    first, second = found["distributions"]["output_tokens"]
    assert first == second
    assert len(first["edges"]) == 13


def test_passes_are_of_binary_rewards_only(found: Row) -> None:
    # sum: right, and failed by the model; list: two that are wrong.
    assert found["runs"][0]["pass_at"] == {"at": {1: 0.25, 2: 0.5}, "tasks": {1: 2, 2: 2}, "left_out": 0}


def test_a_run_of_which_nothing_is_there_yet_has_no_figures(tmp_path: Path) -> None:
    write_manifest(tmp_path / "new", read_manifest(write_run(tmp_path / "r")))
    found = statistics([Run(tmp_path / "new")])
    assert set(map(tuple, found["distributions"].values())) == {(None,)}
    assert (found["runs"][0]["ended"], found["runs"][0]["cached_share"], found["runs"][0]["ends"]) == (0, None, [])
    assert shown(found)[4].split() == ["agents", "0", "of", "6", "ended"]


def test_neither_ids_nor_texts_are_read(tmp_path: Path) -> None:
    asked: set[str] = set()

    class Watched(Run):
        def table(self, name: str, columns: Any = None, *rest: Any, **named: Any) -> Any:
            assert columns is not None
            asked.update(columns)
            return super().table(name, columns, *rest, **named)

    statistics([Watched(write_run(tmp_path / "r"))])
    assert asked
    assert not asked & {"input_delta_ids", "output_ids", "output_logprobs", "output_text", "output", "arguments"}


def shown(found: Row, width: int = 1000) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(statistics_view(found), highlight=False)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_one_run_in_the_terminal(found: Row) -> None:
    lines = shown(found)
    cells = [line.split() for line in lines]
    assert ["cached", "420,", "0.60", "of", "input"] in cells
    assert ["recomputed", "35,", "0.12", "of", "prefill"] in cells
    assert ["finished", "submit", "1", "0.25", "1.000", "2", "20"] in cells
    (turns,) = [line for line in lines if line.startswith("turns  ") and "█" in line]
    assert turns.split() == ["turns", "4", "1", "1.5", "2", "2", "1.5", "█", "█"]
    assert ["read_file", "4", "0", "0", "0", "1", "0.25", "0.25", "1", "0"] in cells
    assert lines[-1].split() == ["2", "tasks", "0.250", "0.500"]
    assert json.loads(json.dumps(found))["runs"][0]["pass_at"]["at"]["1"] == 0.25


def test_several_runs_are_told_apart_by_name(tmp_path: Path) -> None:
    found = statistics([Run(write_run(tmp_path / name)) for name in ("a", "b")])
    cells = [line.split() for line in shown(found)]
    assert cells[0] == ["a", "b"]
    assert ["limit", "a", "turns", "1", "0.25", "0.000", "1", "10"] in cells
    assert ["limit", "b", "turns", "1", "0.25", "0.000", "1", "10"] in cells
    assert [line[:3] for line in cells if line[:2] == ["submit", "b"]] == [["submit", "b", "1"]]


def test_bars() -> None:
    assert histogram([0, 1, 4, 8]) == " ▁▄█"
    assert histogram([1, 1000]) == "▁█"
    assert histogram([]) == histogram([0]).strip() == ""
