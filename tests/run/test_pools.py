"""Runs over several KV pools: replicas that die and return, smaller than before, and the ranks of one server."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from concur_batch.trace.reading import Run
from tests.run.command import Running, finished_run, rows_so_far, synthetic_workload, wait_for
from tests.run.engines import Engine, rows_of, states_of

TOOLS = {"kind": "synthetic", "wait_seconds": [0.2, 0.4]}
CONTROL = {"policy": "none", "period_seconds": 0.5}
Start = Callable[[], Engine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts replicas whose agents need 30 turns."""
    engines: list[Engine] = []

    def one() -> Engine:
        engines.append(Engine(tmp_path, turns=30))
        return engines[-1]

    yield one
    for engine in engines:
        engine.kill()


def pools_of_agents(run: Run) -> dict[str, list[str]]:
    """The pools of each agent's turns, in order."""
    pools: dict[str, list[str]] = defaultdict(list)
    for turn in sorted(run.table("turns").to_pylist(), key=lambda row: int(row["turn"])):
        pools[turn["agent_id"]].append(turn["replica"])
    return pools


def large_task(directory: Path, words: int) -> None:
    """Give the first task a prompt of so many words more."""
    tasks = directory / "tasks.jsonl"
    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    rows = [{**row, "more": "word " * words if number == 0 else ""} for number, row in enumerate(rows)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))


PROMPT = {"file": "tasks.jsonl", "prompt": "Task {{ id }}\n\nWork. {{ more }}", "seed": 3}


def test_agents_of_a_replica_that_dies_go_on_at_the_other_and_wait_where_none_is_left(
    start: Start, tmp_path: Path
) -> None:
    replicas, output = [start(), start()], tmp_path / "runs"
    section = {"kind": "sglang", "urls": [replica.url for replica in replicas]}
    running = Running(synthetic_workload(tmp_path, 8, engine=section, tools=TOOLS, control=CONTROL))
    wait_for(lambda: rows_so_far(output, "turns") >= 16, "turns")
    replicas[1].kill()
    wait_for(lambda: states_of(output) == {"0": "open", "1": "closed"}, "one closed pool")
    turns = rows_so_far(output, "turns")
    wait_for(lambda: rows_so_far(output, "turns") >= turns + 16, "all to go on")
    replicas[0].kill()
    wait_for(lambda: states_of(output) == {"0": "closed", "1": "closed"}, "two closed pools")
    assert (rows_of(output, "agents"), running.process.poll()) == ([], None)
    for replica in replicas:
        replica.start()
    said, log = running.process.communicate(timeout=120)
    assert running.process.returncode == 0, said + log
    assert "pool 1 does not answer: its agents wait" in log
    assert "the engine does not answer: its agents wait" in log
    run = Run(json.loads(said.splitlines()[-1])["run_dir"])
    final = run.agents_final().to_pylist()
    assert {(row["status"], row["attempt"], row["turns"]) for row in final} == {("finished", 0, 31)}
    assert len(final) == 8
    journeys = pools_of_agents(run)
    assert sorted(journey[0] for journey in journeys.values()) == ["0"] * 4 + ["1"] * 4  # they spread
    for journey in journeys.values():
        stages = [pool for number, pool in enumerate(journey) if number == 0 or pool != journey[number - 1]]
        # Sticky: to the one that was left, and after the second death to whichever had room; no other moves.
        assert len(stages) <= 1 + (stages[0] == "1") + 1, journey
        if stages[0] == "1":
            assert stages[1] == "0", journey
    states = {(row["pool"], row["pool_state"]) for row in rows_of(output, "control")}
    assert states >= {("0", "open"), ("0", "closed"), ("1", "open"), ("1", "closed")}


def test_after_a_restart_with_a_smaller_pool_the_agent_that_it_cannot_hold_ends_oversized(
    start: Start, tmp_path: Path
) -> None:
    replica, output = start(), tmp_path / "runs"
    workload = synthetic_workload(
        tmp_path, 6, engine={"kind": "sglang", "url": replica.url}, tools=TOOLS, control=CONTROL, tasks=PROMPT
    )
    large_task(tmp_path, 6000)
    running = Running(workload)
    wait_for(lambda: rows_so_far(output, "turns") >= 12, "turns")
    replica.kill()
    replica.start(pool_tokens=6000)
    summary = running.end(0)
    assert (summary["finished"], summary["oversized"], summary["failed"]) == (5, 1, 0)
    [large] = [row for row in rows_of(output, "agents") if row["status"] == "oversized"]
    assert (large["task_id"], large["end_reason"], large["turns"] < 31) == ("t0000", "pool", True)
    rows = [row for row in rows_of(output, "control") if row["usage"] is not None]
    assert {row["pool_tokens"] for row in rows} == {1_000_000, 6000}
    assert [row["pool_tokens"] for row in rows if row["restarted"]] == [6000]
    for row in rows:
        assert row["usage"] == pytest.approx(row["locked_tokens"] / row["pool_tokens"])


def test_each_dp_rank_has_a_window_of_its_own_and_an_agent_larger_than_a_pool_ends_oversized(tmp_path: Path) -> None:
    engine = {
        "kind": "simulated",
        "synthetic": {"turns": [5, 5]},
        "time_scale": 10,
        "pool_tokens": 6000,
        "context_tokens": 32_768,
        "dp_size": 2,
    }
    control = {"policy": "agent_cap", "cap": 2, "period_seconds": 0.5}
    workload = synthetic_workload(tmp_path, 9, engine=engine, tools=TOOLS, control=control, tasks=PROMPT)
    large_task(tmp_path, 8000)
    summary, run = finished_run(workload)
    assert (summary["finished"], summary["oversized"], summary["pools"]) == (8, 1, 2)
    ends: dict[str, Any] = {row["task_id"]: row for row in run.agents_final().to_pylist()}
    assert (ends["t0000"]["status"], ends["t0000"]["turns"]) == ("oversized", 0)
    journeys = {agent: set(pools) for agent, pools in pools_of_agents(run).items()}
    assert all(len(pools) == 1 for pools in journeys.values())
    assert set.union(*journeys.values()) == {"0.0", "0.1"}
    rows = run.table("control").to_pylist()
    assert {row["pool"] for row in rows} == {"0.0", "0.1"}
    assert {(row["window_after"], row["pool_tokens"]) for row in rows} == {(2, 6000)}
    assert max(row["places_held"] for row in rows) <= 2
    for pool in ("0.0", "0.1"):  # requests went to the rank whose counters say so
        turns = [turn for turn in run.table("turns").to_pylist() if turn["replica"] == pool]
        told = sum(row["lookup_tokens"] or 0 for row in rows if row["pool"] == pool)
        assert told == sum(turn["input_tokens"] for turn in turns) > 0


def test_a_replica_that_was_started_for_the_run_may_die_as_long_as_another_is_left(tmp_path: Path) -> None:
    engine = {"kind": "simulated", "synthetic": {"turns": [15, 15]}, "time_scale": 10, "replicas": 2}
    running = Running(synthetic_workload(tmp_path, 6, engine=engine, tools=TOOLS, control=CONTROL))
    wait_for(lambda: rows_so_far(tmp_path / "runs", "turns") >= 12, "turns")
    running.actor("SimulatedServer").kill()
    summary = running.end(0)
    assert (summary["finished"], summary["pools"]) == (6, 2)
    assert "closed" in states_of(tmp_path / "runs").values()
