"""`concur ps` and `concur ctl` on a run that goes on, each a process of its own; and on runs that do not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from concur_batch.trace.manifest import read_manifest, write_manifest
from concur_batch.trace.reading import Run
from tests.run.command import Running, concur, rows_so_far, synthetic_workload, wait_for
from tests.servers import free_port

AGENTS = 8


def line_of(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that a command said, on the stream where its code belongs."""
    said, silent = (done.stderr, done.stdout) if code else (done.stdout, done.stderr)
    assert (done.returncode, said.count("\n"), silent) == (code, 1, ""), done
    return said.strip()


def ps(run_dir: Path, *options: str) -> dict[str, Any]:
    done = concur("ps", run_dir, "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def live_run(output: Path) -> Path | None:
    """The directory of the only run below `output`, once it can be operated."""
    for manifest in output.glob("*/manifest.json"):
        if read_manifest(manifest.parent).get("live"):
            return manifest.parent
    return None


def workers(running: Running) -> set[int]:
    """The run's Ray processes that are actors or drivers of its own, by pid."""
    children = psutil.Process(running.process.pid).children(recursive=True)
    return {
        child.pid for child in children if "ray::" in " ".join(child.cmdline()) and "IDLE" not in child.cmdline()[0]
    }


def test_a_run_is_watched_changed_paused_resumed_and_cancelled_agent_by_agent(tmp_path: Path) -> None:
    output = tmp_path / "runs"
    running = Running(
        synthetic_workload(
            tmp_path,
            AGENTS,
            engine={"kind": "simulated", "synthetic": {"turns": [5000, 5000]}, "time_scale": 10, "replicas": 2},
            tools={"kind": "synthetic", "wait_seconds": [0.2, 0.6], "observation_words": [5, 5]},
            control={"policy": "concur", "period_seconds": 0.2, "initial_window": 1, "max_window": 2},
            agent={"hosts": 2, "limits": {"turns": 5000}},
        )
    )
    run_dir: Path = wait_for(lambda: live_run(output), "the controller")
    ctl: Callable[..., subprocess.CompletedProcess[str]] = lambda *words: concur("ctl", run_dir, *words)  # noqa: E731
    wait_for(lambda: rows_so_far(output, "turns") >= AGENTS, "turns")
    before = workers(running)

    # As it is: two pools of two places, the others wait.
    picture = ps(run_dir, "--state", "pending")
    assert (picture["live"], picture["suspended"], picture["ended"]) == (True, False, {})
    assert [window["pool"] for window in picture["windows"]] == ["0", "1"]
    assert sum(picture["states"].values()) == AGENTS
    assert picture["states"]["pending"] == AGENTS - 4 == len(picture["listed"])
    assert {row["agent_id"] for row in picture["waits"]} == {row["agent_id"] for row in picture["listed"]}
    text = concur("ps", run_dir)
    assert (text.returncode, text.stderr) == (0, "")
    assert "longest waits" in text.stdout
    assert "\x1b" not in text.stdout

    # Settings: those that are wrong change nothing.
    wrong = ctl("set", "control.max_window=3", "control.u_high=1.6")
    assert line_of(wrong, 2) == "set control.u_high=1.6: control.u_high: 1.6 is above 1; give a share from 0 to 1"
    assert "keeps its policy" in line_of(ctl("set", "control.policy=none"), 2)
    assert line_of(ctl("set", "control.max_window=3"), 0) == "set control.max_window 2 -> 3"
    assert "nothing to change" in line_of(ctl("set", "control.max_window=3"), 0)
    wait_for(lambda: ps(run_dir)["states"]["pending"] == AGENTS - 6, "the wider windows", 20)

    # A pause outlives the controller, with the settings.
    assert line_of(ctl("pause"), 0).startswith("paused")
    assert "already" in line_of(ctl("pause"), 0)
    wait_for(lambda: ps(run_dir)["states"]["paused"] == 6, "the pauses", 20)
    turns = rows_so_far(output, "turns")
    running.actor("Controller").kill()
    picture = ps(run_dir)
    assert (picture["suspended"], picture["states"]["paused"], picture["states"]["active"]) == (True, 6, 0)
    assert "paused by the operator" in picture["notes"]
    assert rows_so_far(output, "turns") == turns
    assert json.loads((run_dir / "control.json").read_text())["control"]["max_window"] == 3
    assert line_of(ctl("resume"), 0) == "resumed"
    assert "not paused" in line_of(ctl("resume"), 0)
    wait_for(lambda: rows_so_far(output, "turns") > turns, "turns after the pause", 20)

    # All agents, on both hosts, waiting ones and working ones.
    unknown = line_of(ctl("cancel", "t0003/7"), 2)
    assert "no such agent" in unknown
    assert "t0003/0" in unknown
    agents = [f"t{number:04d}/0" for number in range(AGENTS)]
    assert line_of(ctl("cancel", agents[0]), 0) == f"cancelled {agents[0]}"
    wait_for(lambda: ps(run_dir)["ended"] == {"cancelled": 1}, "its row", 20)
    assert "has ended already: cancelled" in line_of(ctl("cancel", agents[0]), 2)
    assert len(workers(running) - before) <= 1  # the controller that was started anew; nothing of ours
    with ThreadPoolExecutor(4) as operators:  # several at once
        for agent, done in zip(agents[1:], operators.map(lambda agent: ctl("cancel", agent), agents[1:]), strict=True):
            assert line_of(done, 0) == f"cancelled {agent}"
    summary = running.end(0)
    assert (summary["status"], summary["cancelled"], summary["unfinished"]) == ("finished", AGENTS, 0)

    # What is left: final rows, the record of every change in every pool, a manifest that knows of no Ray.
    run = Run(run_dir)
    assert {(row["status"], row["failure_class"]) for row in run.agents_final().to_pylist()} == {("cancelled",) * 2}
    rows = run.table("control").sort_by("seconds").to_pylist()
    told = {pool: "; ".join(row["changes"] for row in rows if row["pool"] == pool and row["changes"]) for pool in "01"}
    assert told["0"] == told["1"]
    parts = told["0"].split("; ")
    restored = "after a restart of the controller: control.max_window 2 -> 3, paused"
    assert parts[:4] == ["control.max_window 2 -> 3", "paused", restored, "resumed"]
    assert sorted(parts[4:]) == [f"cancelled {agent}" for agent in agents]
    assert run.manifest["live"] is None
    picture = ps(run_dir)
    assert (picture["live"], picture["ended"], picture["status"]) == (False, {"cancelled": AGENTS}, "finished")
    assert "is not running: its status is finished" in picture["notes"][0]
    assert "is not running: its status is finished" in line_of(ctl("pause"), 2)


def test_a_window_in_tokens_is_watched_changed_and_explained(tmp_path: Path) -> None:
    running = Running(
        synthetic_workload(
            tmp_path,
            AGENTS,
            engine={"kind": "simulated", "synthetic": {"turns": [30, 30]}, "time_scale": 10, "pool_tokens": 4000},
            tools={"kind": "synthetic", "wait_seconds": [0.05, 0.1], "observation_words": [5, 5]},
            control={"policy": "token_window", "period_seconds": 0.2, "admit_share": 0.2, "pause_share": 0.3},
        )
    )
    run_dir: Path = wait_for(lambda: live_run(tmp_path / "runs"), "the controller")
    wait_for(lambda: ps(run_dir)["states"]["paused"], "a pause", 20)
    (window,) = ps(run_dir)["windows"]
    assert (window["window"], window["window_tokens"] // 800) == (None, 1)  # tool waits stretch it by at most 0.3
    assert window["footprint_tokens"] > 0
    done = concur("ctl", run_dir, "set", "control.admit_share=0.9", "control.pause_share=1.0")
    assert line_of(done, 0) == "set control.admit_share 0.2 -> 0.9, control.pause_share 0.3 -> 1.0"
    summary = running.end(0)
    rows = Run(run_dir).table("control").sort_by("seconds").to_pylist()
    assert rows[0]["window_tokens"] < 1100 and rows[-1]["window_tokens"] >= 3600
    assert summary["footprint_share_max"] >= summary["footprint_share_mean"] > 0
    assert (summary["finished"], summary["window_max"]) == (AGENTS, None)
    assert 0 < summary["pauses_mean"] <= summary["pauses_max"]
    assert summary["longest_pause_seconds"] > 0
    told = concur("audit", run_dir).stdout
    assert "tokens inside:" in told
    assert "control.admit_share 0.2 -> 0.9" in told
    paused = max(Run(run_dir).agents_final().to_pylist(), key=lambda row: row["paused_seconds"])
    life = concur("explain", run_dir, "--agent", paused["agent_id"]).stdout
    assert " tokens were inside of " in next(line for line in life.splitlines() if "  paused, " in line)


def test_a_run_that_was_killed_and_what_is_no_run_are_one_line(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    gone = subprocess.Popen(["true"])
    gone.wait()
    manifest = {"run": "r", "status": "running", "agents": 3, "workload": {"control": {"policy": "none"}}}
    lives = (
        (None, "its controller is not up"),
        ({"address": address, "node": socket.gethostname(), "pid": gone.pid}, f"its process {gone.pid} is gone"),
        (
            {"address": address, "node": socket.gethostname(), "pid": os.getpid()},
            f"no Ray cluster answers at {address}",
        ),
        ({"address": address, "node": "elsewhere", "pid": 1}, f"no Ray cluster answers at {address}"),
    )
    for live, why in lives:
        write_manifest(tmp_path, {**manifest, "live": live})
        line = line_of(concur("ctl", tmp_path, "resume"), 2)
        assert line.startswith("concur: r is not running")
        assert why in line
    told = concur("ps", tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("r: killed, policy none, 0/3 agents ended\n")
    assert "not a run directory" in line_of(concur("ps", tmp_path / "nothing"), 2)
    assert "not a run directory" in line_of(concur("ctl", tmp_path / "nothing", "pause"), 2)
    assert "did you mean `paused`?" in line_of(concur("ps", tmp_path, "--state", "pause"), 2)
