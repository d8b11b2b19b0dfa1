"""A run that everything befalls, and that goes on each time: in the end it is the run that nothing befell."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from concur_batch.driver.leftovers import leftovers
from concur_batch.trace.reading import Run
from tests.run.command import ROOT, Running, concur, finished_run, rows_so_far, synthetic_workload, wait_for

SMALL = ("--set", "tasks.limit=6", "--set", "control.period_seconds=0.2", "--set", "tools.keep_workspaces=true")
SLOW = ("--set", "engine.time_scale=1.5")
AGENTS = 12

_SAME = {
    "agents": "agent_id, attempt, final, status, end_reason, answer, reward, seed, turns, tool_calls, malformed_turns, "
    "input_tokens, output_tokens, context_tokens",
    "turns": "agent_id, attempt, turn, input_delta_ids, output_ids, output_text, finish_reason, action, input_tokens, "
    "output_tokens, context_tokens",
    "tools": "agent_id, attempt, turn, call, name, arguments, status, output, exit_code, truncated, output_bytes",
}
_SUMS = ("agents", "finished", "failed", "unfinished", "reward_mean", "turns", "turns_median", "tool_calls",
         "input_tokens", "output_tokens", "malformed_turns")  # fmt: skip


def tables(run: Run) -> dict[str, list[Any]]:
    """All rows of a finished run, as any reader finds them, without what differs from run to run."""
    return {
        table: duckdb.sql(f"select {columns} from '{run.path}/{table}/*.parquet' order by all").fetchall()
        for table, columns in _SAME.items()
    }


def workspaces(run: Run) -> dict[str, tuple[int, bytes | str | None]]:
    """What the agents have left: modes, and contents or targets."""
    kept = run.path / "workspaces" / "kept"
    return {
        str(path.relative_to(kept)): (
            path.lstat().st_mode,
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in kept.rglob("*")
        if "__pycache__" not in path.parts and ".pytest_cache" not in path.parts
    }


def last_look(log: str) -> tuple[int, int]:
    """Turns and tool calls in the live view's last line."""
    shown = re.findall(r"turns (\d+)  tools (\d+)", log)
    return int(shown[-1][0]), int(shown[-1][1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Run]:
    return finished_run(
        ROOT / "workloads" / "quickstart.yaml", *SMALL, "--set", f"output={tmp_path_factory.mktemp('undisturbed')}"
    )


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """In the end, no process is left of any run that has died."""
    yield
    wait_for(lambda: not leftovers(), "the end of what dead runs have left", 20)


def begun_run(output: Path) -> Path:
    (manifest,) = output.glob("*/manifest.json")
    return manifest.parent


def is_recorder(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.name() == "ray::Recorder"
    return False


def go_on(run_dir: Path, *options: object) -> Running:
    return Running(run_dir, *options, verb="resume")


def turns_beyond(output: Path, count: int) -> None:
    wait_for(lambda: rows_so_far(output, "turns") > count, f"more than {count} turns")


@pytest.mark.usefixtures("nothing_left")
def test_a_run_that_everything_befalls_is_in_the_end_the_run_that_nothing_befell(
    undisturbed: tuple[dict[str, Any], Run], tmp_path: Path
) -> None:
    output = tmp_path / "runs"
    running = Running(ROOT / "workloads" / "quickstart.yaml", *SMALL, *SLOW, "--set", f"output={output}")
    turns_beyond(output, 8)
    run_dir = begun_run(output)
    # One that lives is not touched.
    refused = concur("resume", run_dir)
    assert (refused.returncode, refused.stderr.count("\n"), "is running" in refused.stderr) == (2, 1, True)
    # A host, with every workspace that it holds.
    running.actor("AgentHost").kill()
    turns_beyond(output, rows_so_far(output, "turns") + 2)
    # A signal: what runs comes to its end.
    running.process.send_signal(signal.SIGINT)
    said, log = running.process.communicate(timeout=100)
    assert running.process.returncode == 130, log
    assert f"concur resume {run_dir}" in log
    after_signal = Run(run_dir).table("turns", ["agent_id"]).num_rows
    assert last_look(log)[0] == json.loads(said.splitlines()[-1])["turns"] == after_signal
    named = concur("run", run_dir)
    assert (named.returncode, f"concur resume {run_dir}" in named.stderr) == (2, True)

    # The driver, and a journal that it was just writing.
    running = go_on(run_dir, "--set", "engine.time_scale=2")
    turns_beyond(output, after_signal + 3)
    for victim in ("Recorder", "Controller"):
        running.actor(victim).kill()
    turns_beyond(output, rows_so_far(output, "turns") + 2)
    running.process.kill()
    running.process.wait()
    before = {(row["agent_id"], row["turn"]) for row in Run(run_dir).table("turns", ["agent_id", "turn"]).to_pylist()}
    wait_for(lambda: not any(map(is_recorder, leftovers())), "its recorder's end", 30)
    segments = list((run_dir / "journal").glob("*.jsonl"))
    assert segments
    with segments[0].open("ab") as journal:
        journal.write(b'tools\t{"agent_id": "torn"}\nturns\t{"agent_id": "to')

    running = go_on(run_dir, "--set", "engine.time_scale=12")
    summary = running.end(0)
    run = Run(run_dir)
    assert tables(run) == tables(undisturbed[1])
    assert workspaces(run) == workspaces(undisturbed[1])
    assert {name: summary[name] for name in _SUMS} == {name: undisturbed[0][name] for name in _SUMS}
    assert last_look(running.log) == (summary["turns"], summary["tool_calls"])
    assert f"{AGENTS}/{AGENTS}" in running.log
    # No turn that was on record was made anew, and nothing is left over.
    assert before <= {(row["agent_id"], row["turn"]) for row in run.table("turns", ["agent_id", "turn"]).to_pylist()}
    assert [entry["agents"] > 0 for entry in run.manifest["resumed"]] == [True, True]
    assert (run.manifest["status"], run.manifest["seconds"] > 0) == ("finished", True)
    moments = [row["ended_seconds"] for row in run.table("turns", ["ended_seconds"]).to_pylist()]
    assert max(moments) <= run.manifest["seconds"], "time in which it did not run does not count"
    assert not list((run_dir / "workspaces").glob("saved*"))
    assert not (run_dir / "journal").exists()
    assert not (run_dir / "intents").exists()

    again = concur("resume", run_dir)
    assert (again.returncode, "has finished" in again.stdout) == (0, True)


@pytest.mark.usefixtures("nothing_left")
def test_a_second_signal_ends_a_run_at_once_and_a_replayed_one_goes_on_too(
    undisturbed: tuple[dict[str, Any], Run], tmp_path: Path
) -> None:
    output = tmp_path / "runs"
    running = Running("--replay", undisturbed[1].path, *SLOW, "--set", f"output={output}", "--set", "replay.limit=6")
    turns_beyond(output, 6)
    running.process.terminate()
    running.process.terminate()
    _, log = running.process.communicate(timeout=60)
    assert running.process.returncode == 143, log
    run_dir = begun_run(output)
    assert f"concur resume {run_dir}" in log
    summary = go_on(run_dir, "--set", "engine.time_scale=12").end(0)
    recorded = {row["agent_id"]: row["turns"] for row in undisturbed[1].agents_final().to_pylist()}
    final = Run(run_dir).agents_final().to_pylist()
    assert len(final) == summary["finished"] == 6
    assert all(row["turns"] == recorded[row["agent_id"]] and row["attempt"] == 0 for row in final)
    keys = [(row["agent_id"], row["turn"]) for row in Run(run_dir).table("turns", ["agent_id", "turn"]).to_pylist()]
    assert len(keys) == len(set(keys)) == sum(row["turns"] for row in final)


def test_failures_run_again_where_it_is_said_and_what_decides_results_may_not_change(tmp_path: Path) -> None:
    workload = synthetic_workload(tmp_path, 4, agent={"limits": {"turns": 3}})
    summary, run = finished_run(workload)
    assert summary["limit"] == 4
    tasks = tmp_path / "tasks.jsonl"
    shutil.copy(tasks, tmp_path / "kept")
    tasks.write_text(tasks.read_text().replace('"t0003"', '"t0009"'))
    changed = ("--set", "agent.limits.turns=9", "--set", "control.policy=concur")
    refused = concur("resume", run.path, "--retry", "limit", *changed)
    assert refused.returncode == 2
    lines = refused.stderr.splitlines()
    assert "agent.limits.turns: was 3, is 9" in lines
    assert "tasks: the content has changed" in lines
    assert len(lines) == 4, "the policy decides no result"
    assert Run(run.path).agents_final().num_rows == 4, "nothing was touched"
    shutil.copy(tmp_path / "kept", tasks)
    again = go_on(run.path, "--retry", "limit", "--force", *changed).end(0)
    assert (again["finished"], again["limit"], again["agents"]) == (4, 0, 4)
    rows = duckdb.sql(f"select agent_id, attempt, final from '{run.path}/agents/*.parquet' order by all").fetchall()
    assert rows == [(f"t000{number}/0", attempt, attempt == 1) for number in range(4) for attempt in (0, 1)]
    assert Run(run.path).manifest["resumed"][-1]["changed"] == ["agent.limits.turns: was 3, is 9"]
    wrong = concur("resume", run.path, "--retry", "luck")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
