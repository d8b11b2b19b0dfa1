"""`concur run --replay`: the same work again, under another policy, of a run with real tools and all kinds of ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from concur_batch.bench.same_work import same_work
from concur_batch.trace.reading import Run
from tests.run.command import ROOT, concur, finished_run, synthetic_workload


def rows(run: Run, table: str, *columns: str) -> list[tuple[Any, ...]]:
    order = ["agent_id", "turn", "call"] if table == "tools" else ["agent_id", "turn"]
    found = run.table(table).sort_by([(name, "ascending") for name in order])
    return list(zip(*(found[name].to_pylist() for name in columns), strict=True))


def test_a_recorded_run_is_replayed_under_another_policy_and_again(tmp_path: Path) -> None:
    quickstart = ROOT / "workloads" / "quickstart.yaml"
    settings = ("tasks.limit=8", "tasks.samples=1", f"output={tmp_path}", "agent.limits.turns=5")
    first = concur("run", quickstart, "--json", *(part for each in settings for part in ("--set", each)))
    assert first.returncode in (0, 1), first.stderr
    recorded = Run(json.loads(first.stdout.splitlines()[-1])["run_dir"])
    control = ("--set", 'control={"policy": "agent_cap", "cap": 3}')
    _, replayed = finished_or_failed("--replay", recorded.path, *control)
    _, again = finished_or_failed("--replay", replayed.path, "--set", 'control={"policy": "none"}')
    for run in (replayed, again):
        difference = same_work(recorded.table("agents").to_pylist(), run.table("agents").to_pylist())
        assert difference.lines() == []
        assert difference.second_totals["agents"] == 8
        assert difference.second_totals["tool_calls"] > 10
        calls = ("agent_id", "turn", "call", "name", "arguments", "status", "output", "exit_code")
        assert rows(run, "tools", *calls) == rows(recorded, "tools", *calls)
        told = ("agent_id", "turn", "input_delta_ids", "output_tokens", "input_tokens", "context_tokens")
        assert rows(run, "turns", *told) == rows(recorded, "turns", *told)
        waits = zip(rows(recorded, "turns", "tool_seconds"), rows(run, "turns", "tool_seconds"), strict=True)
        assert all(seconds <= slept + 0.05 for (seconds,), (slept,) in waits)
        assert not list((run.path / "workspaces").glob("*"))
    assert recorded.manifest["prompting"] is not None and replayed.manifest["prompting"] is None
    assert replayed.manifest["workload"]["replay"]["run"] == str(recorded.path)
    assert replayed.manifest["identity"]["tasks"] == again.manifest["identity"]["tasks"]


def finished_or_failed(*arguments: object) -> tuple[dict[str, Any], Run]:
    """Agents that failed of their own fail again."""
    done = concur("run", *arguments, "--json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["unfinished"] == 0
    return summary, Run(summary["run_dir"])


def test_a_workload_gives_the_engine_and_the_control_of_a_replay(tmp_path: Path) -> None:
    workload = synthetic_workload(tmp_path, 6)
    _, recorded = finished_run(workload, "--set", "tools.wait_seconds=[0.01, 0.02]")
    other = yaml.safe_load(workload.read_text()) | {"name": "other", "control": {"policy": "agent_cap", "cap": 2}}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    summary, replayed = finished_run(tmp_path / "other.yaml", "--replay", recorded.path, "--set", "replay.limit=4")
    assert (summary["policy"], summary["agents"], summary["finished"]) == ("agent_cap", 4, 4)
    assert replayed.path.name.startswith("other-")
    began = recorded.table("agents").sort_by([("started_seconds", "ascending"), ("agent_id", "ascending")])
    assert set(replayed.table("agents")["agent_id"].to_pylist()) == set(began["agent_id"].to_pylist()[:4])


def test_what_cannot_be_replayed_is_refused_in_one_line(tmp_path: Path) -> None:
    for arguments, told in (
        (("--replay", tmp_path), f"not a run directory: {tmp_path}: it holds no manifest.json"),
        ((), "no workload"),
    ):
        done = concur("run", *arguments)
        assert done.returncode == 2
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1
