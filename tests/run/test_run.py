"""Whole runs on real Ray, with real sandboxed tools: what they leave behind, and what cannot be lost."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from concur_batch.trace.reading import Run
from tests.run.command import (
    ROOT,
    Running,
    concur,
    finished_run,
    rows_so_far,
    synthetic_workload,
    wait_for,
)

QUICKSTART = ROOT / "workloads" / "quickstart.yaml"
SMALL = ("--set", "tasks.limit=6", "--set", "control.period_seconds=0.2")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Run]:
    return finished_run(QUICKSTART, *SMALL, "--set", f"output={tmp_path_factory.mktemp('small')}")


def test_every_agent_has_one_final_row_and_all_its_turns_and_calls(small: tuple[dict[str, Any], Run]) -> None:
    summary, run = small
    final = run.agents_final().to_pylist()
    assert len(final) == len({row["agent_id"] for row in final}) == summary["agents"] == 12
    turns, tools = run.table("turns").to_pylist(), run.table("tools").to_pylist()
    for agent in final:
        own = [turn for turn in turns if turn["agent_id"] == agent["agent_id"]]
        assert [turn["turn"] for turn in sorted(own, key=lambda turn: turn["turn"])] == list(range(agent["turns"]))
        assert sum(call["agent_id"] == agent["agent_id"] for call in tools) == agent["tool_calls"] > 0
        assert agent["reward"] is not None


def test_token_accounts_add_up(small: tuple[dict[str, Any], Run]) -> None:
    _, run = small
    for turn in run.table("turns").to_pylist():
        cached = turn["cached_device_tokens"] + turn["cached_host_tokens"] + turn["cached_storage_tokens"]
        computed = turn["first_tokens"] + turn["recomputed_tokens"] + turn["rounding_tokens"]
        assert cached + computed == turn["input_tokens"]


def test_the_deltas_rebuild_every_prompt(small: tuple[dict[str, Any], Run]) -> None:
    _, run = small
    lengths: dict[str, int] = {}
    for turn in sorted(run.table("turns").to_pylist(), key=lambda turn: (turn["agent_id"], turn["turn"])):
        before = lengths.get(turn["agent_id"], 0)
        assert before + len(turn["input_delta_ids"]) == turn["input_tokens"]
        lengths[turn["agent_id"]] = turn["input_tokens"] + len(turn["output_ids"])


def test_the_engines_count_of_hits_equals_ours(small: tuple[dict[str, Any], Run]) -> None:
    _, run = small
    control = run.table("control").to_pylist()
    ours = sum(row["cached_device_tokens"] for row in run.table("turns").to_pylist())
    first = control[0]["period"]
    assert [row["period"] for row in sorted(control, key=lambda row: row["period"])] == list(
        range(first, first + len(control))
    )
    # The first period has no reading before it, so that its own hits are not in the sum.
    assert 0 < sum(row["device_hit_tokens"] or 0 for row in control) <= ours


def test_a_finished_run_leaves_tables_that_anyone_reads_and_nothing_else(small: tuple[dict[str, Any], Run]) -> None:
    summary, run = small
    assert run.manifest["status"] == summary["status"] == "finished"
    assert summary["simulated"] is True
    assert not list(run.path.glob("journal/*"))
    assert not list(run.path.glob("workspaces/*/*"))
    for table, rows in (("agents", 12), ("turns", summary["turns"]), ("tools", summary["tool_calls"])):
        found = duckdb.sql(f"select count(*) from '{run.path}/{table}/*.parquet'").fetchall()
        assert found == [(rows,)]
    leftovers = [process for process in psutil.process_iter(["cmdline"]) if summary["run"] in str(process.info)]
    assert not leftovers


def test_the_same_seed_gives_the_same_trajectories(small: tuple[dict[str, Any], Run], tmp_path: Path) -> None:
    _, first = small
    _, second = finished_run(QUICKSTART, *SMALL, "--set", f"output={tmp_path}", "--set", "control.policy=none")
    columns = ["agent_id", "turn", "input_delta_ids", "output_ids"]
    keys = [("agent_id", "ascending"), ("turn", "ascending")]
    assert first.table("turns", columns).sort_by(keys).equals(second.table("turns", columns).sort_by(keys))


def test_a_dry_run_touches_nothing(tmp_path: Path) -> None:
    done = concur("run", QUICKSTART, "--dry-run", "--set", f"output={tmp_path / 'runs'}")
    assert done.returncode == 0, done.stderr
    assert "control.admit_share" in done.stdout
    assert not list(tmp_path.iterdir())


def test_bad_input_is_told_in_lines_and_ends_with_2(tmp_path: Path) -> None:
    workload = synthetic_workload(tmp_path, 1, control={"policy": "concur", "u_high": 1.5}, agent={"turn": 3})
    done = concur("run", workload)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2
    assert any("control.u_high" in line for line in lines)
    assert any("agent.turn" in line for line in lines)
    assert not (tmp_path / "runs").exists()


def test_an_engine_that_is_not_there_is_one_line_and_1(tmp_path: Path) -> None:
    engine = {"kind": "sglang", "url": "http://127.0.0.1:9"}
    done = concur("run", synthetic_workload(tmp_path, 1, engine=engine))
    assert done.returncode == 1
    assert "http://127.0.0.1:9" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def most_at_once(rows: list[dict[str, Any]], begin: str, seconds: str) -> int:
    """The greatest number of intervals that overlap."""
    edges = [(row[begin], 1) for row in rows] + [(row[begin] + row[seconds], -1) for row in rows]
    level = most = 0
    for _, step in sorted(edges):
        level += step
        most = max(most, level)
    return most


@pytest.mark.parametrize("policy", ["request_cap", "agent_cap"])
def test_a_cap_holds_and_is_used(policy: str, tmp_path: Path) -> None:
    workload = synthetic_workload(tmp_path, 24, control={"policy": policy, "cap": 5})
    summary, run = finished_run(workload)
    assert summary["finished"] == 24
    turns = run.table("turns").to_pylist()
    assert most_at_once(turns, "generation_started_seconds", "generation_seconds") <= 5
    lives = [{**row, "life": row["ended_seconds"] - row["admitted_seconds"]} for row in run.agents_final().to_pylist()]
    assert (most_at_once(lives, "admitted_seconds", "life") == 5) is (policy == "agent_cap")


def test_the_law_pauses_agents_at_a_boundary_and_all_of_them_finish(tmp_path: Path) -> None:
    """A pool of a third of the working set, and thresholds at which the law acts."""
    workload = synthetic_workload(
        tmp_path,
        40,
        engine={"kind": "simulated", "synthetic": {"turns": [8, 8]}, "time_scale": 4, "pool_tokens": 6000},
        tools={"kind": "synthetic", "wait_seconds": [0.05, 0.4], "observation_words": [60, 120]},
        control={"policy": "concur", "initial_window": 40, "period_seconds": 0.2, "u_high": 0.3, "h_thresh": 0.9},
    )
    summary, run = finished_run(workload)
    assert summary["finished"] == 40
    control = run.table("control").sort_by("period").to_pylist()
    assert summary["window_cuts"] > 0
    # An agent that waited at a boundary while its mark was being lifted has paused, but for the window it never did.
    assert 0 < sum(row["paused_in_period"] for row in control) <= summary["pauses"]
    assert sum(row["admitted_in_period"] for row in control) == 40  # a resumed agent is no new one
    assert sum(row["completed_in_period"] for row in control) == 40
    last = control[-1]
    assert [last[state] for state in ("pending", "active", "tool_wait", "paused", "marked")] == [0] * 5
    for turn in run.table("turns").to_pylist():
        if turn["paused_seconds"]:
            assert turn["turn"] > 0
            assert turn["generation_started_seconds"] >= turn["started_seconds"] + turn["paused_seconds"] - 1e-3


def test_ctrl_c_ends_running_turns_saves_them_and_exits_with_130(tmp_path: Path) -> None:
    tools = {"kind": "synthetic", "wait_seconds": [0.5, 1.0]}
    running = Running(synthetic_workload(tmp_path, 20, tools=tools))
    wait_for(lambda: rows_so_far(tmp_path / "runs", "turns") >= 10, "turns")
    running.process.send_signal(signal.SIGINT)
    summary = running.end(130)
    assert summary["status"] == "interrupted"
    run = Run(summary["run_dir"])
    assert run.agents_final().num_rows + summary["unfinished"] == 20
    assert summary["unfinished"] > 0
    keys = [(row["agent_id"], row["attempt"], row["turn"]) for row in run.table("turns").to_pylist()]
    assert len(keys) == len(set(keys)) >= 10
    assert not list(run.path.glob("journal/*"))


@pytest.mark.parametrize("victim", ["AgentHost", "Controller", "Recorder"])
def test_a_killed_actor_costs_no_agent(victim: str, tmp_path: Path) -> None:
    tools = {"kind": "synthetic", "wait_seconds": [0.3, 0.8]}
    control = {"policy": "agent_cap", "cap": 8}
    running = Running(synthetic_workload(tmp_path, 16, tools=tools, control=control, agent={"hosts": 2}))
    wait_for(lambda: rows_so_far(tmp_path / "runs", "turns") >= 12, "turns")
    running.actor(victim).kill()
    summary = running.end(0)
    run = Run(summary["run_dir"])
    final = run.agents_final().to_pylist()
    assert sorted(row["agent_id"] for row in final) == sorted(f"t{n:04d}/0" for n in range(16))
    assert all(row["status"] == "finished" and row["turns"] == 6 for row in final)
    assert summary["status"] == "finished"
    keys = [(row["agent_id"], row["attempt"], row["turn"]) for row in run.table("turns").to_pylist()]
    assert len(keys) == len(set(keys))
    if victim == "AgentHost":  # its agents' places came back: the others could not have finished otherwise
        assert {row["attempt"] for row in final} == {0}
    last = max(run.table("control").to_pylist(), key=lambda row: row["seconds"])
    assert (last["active"], last["tool_wait"], last["pending"]) == (0, 0, 0)


def test_the_json_summary_is_the_last_line_on_stdout(tmp_path: Path) -> None:
    done = concur("run", synthetic_workload(tmp_path, 2), "--json")
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["agents"], summary["finished"], summary["turns"]) == (2, 2, 12)


def test_the_whole_quickstart_shows_three_phases_and_the_window_at_work(tmp_path: Path) -> None:
    summary, run = finished_run(QUICKSTART, "--set", f"output={tmp_path}")
    final = run.agents_final().to_pylist()
    assert len(final) == summary["finished"] >= 96
    assert len({row["task_id"] for row in final}) >= 48
    assert set(summary["phase_seconds"]) == {"warmup", "middle", "cooldown"}
    assert summary["evicted_tokens"] > 0
    assert 0.5 < summary["footprint_share_mean"] < 1.5
    assert summary["pauses"] > 0
    assert 0.85 < summary["reward_mean"] < 1
    assert summary["turns_median"] >= 4


def test_explain_tells_an_agents_life_in_order_of_time(small: tuple[dict[str, Any], Run]) -> None:
    _, run = small
    agent = run.agents_final().to_pylist()[0]
    done = concur("explain", run.path, "--agent", agent["agent_id"])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    moments = [float(line.split()[0]) for line in lines]
    assert moments == sorted(moments)
    assert sum(": generated " in line for line in lines) == agent["turns"]
    assert sum(": ok, " in line or ": error, " in line for line in lines) == agent["tool_calls"]
    assert f"reward {agent['reward']:g}" in lines[-1]
    wrong = concur("explain", run.path, "--agent", agent["agent_id"] + "x")
    assert wrong.returncode == 2
    assert agent["agent_id"] in wrong.stderr


def test_audit_reads_a_run_and_says_in_one_line_what_is_none(small: tuple[dict[str, Any], Run], tmp_path: Path) -> None:
    summary, run = small
    done = concur("audit", run.path)
    assert done.returncode == 0, done.stderr
    assert summary["run"] in done.stdout
    assert "policy token_window" in done.stdout
    wrong = concur("audit", tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "not a run directory" in wrong.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_ray_starts_ends_everything_at_once(number: signal.Signals, tmp_path: Path) -> None:
    running = Running(synthetic_workload(tmp_path, 4))

    def ray_starts() -> list[psutil.Process]:
        children = psutil.Process(running.process.pid).children(recursive=True)
        return [child for child in children if "gcs_server" in child.name()]

    started = wait_for(ray_starts, "Ray")
    running.process.send_signal(number)
    _, log = running.process.communicate(timeout=60)
    assert running.process.returncode == 128 + number
    assert "Traceback" not in log
    (manifest,) = (tmp_path / "runs").glob("*/manifest.json")
    assert json.loads(manifest.read_text())["status"] == "interrupted"
    wait_for(lambda: not any(process.is_running() for process in started), "Ray's end", 20)


def test_a_host_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    running = Running(synthetic_workload(tmp_path, 4))
    running.actor("AgentHost").kill()
    summary = running.end(0)
    assert (summary["finished"], summary["status"]) == (4, "finished")
