"""The real SmolLM2-135M on a real SGLang on the CPU: launched, worked with, stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from concur_batch.trace.reading import Run
from tests.run.command import ROOT, Running, concur, finished_run, synthetic_workload, wait_for

WORKLOAD = ROOT / "workloads" / "smollm_cpu.yaml"
BUILT = (ROOT / ".venv-sglang" / ".stamp").exists() and (ROOT / "models/smollm2-135m/.stamp").exists()
needs_sglang = pytest.mark.skipif(not BUILT, reason="no SGLang for the CPU here: make sglang-cpu (needs Python 3.11)")


@pytest.mark.sglang
@needs_sglang
@pytest.mark.timeout(1500)
def test_a_real_model_uses_real_tools_on_a_real_server(tmp_path: Path) -> None:
    before = sglang_processes()
    summary, run = finished_run(WORKLOAD, "--set", f"output={tmp_path}")
    assert summary["simulated"] is False
    assert summary["agents"] >= 24
    assert summary["finished"] + summary["limit"] + summary["failed"] == summary["agents"]
    assert summary["turns_median"] >= 3
    turns = run.table("turns").to_pylist()
    executed = [call for call in run.table("tools").to_pylist() if call["status"] in ("ok", "error")]
    assert len(executed) >= 50
    texts = {(turn["agent_id"], turn["turn"]): turn["output_text"] for turn in turns}
    for call in executed:  # parsed from what the model itself wrote
        assert f"Action: {call['name']}" in texts[call["agent_id"], call["turn"]]
    check_engine(run, summary["evicted_tokens"])
    assert sglang_processes() <= before


def sglang_processes() -> set[int]:
    """Those of a server that the session's tests share may be among them."""
    return {p.pid for p in psutil.process_iter(["cmdline"]) if "sglang" in " ".join(p.info["cmdline"] or [])}


def check_engine(run: Run, evicted_tokens: int) -> None:
    """What the server told: the small pool evicts, U and H move, and its hits are the ones we counted."""
    assert evicted_tokens > 0
    control = run.table("control").sort_by("period").to_pylist()
    usages = [row["usage"] for row in control if row["usage"] is not None]
    hit_rates = [row["hit_rate"] for row in control if row["hit_rate"] is not None]
    assert len(set(usages)) > 3
    assert max(usages) > 0.2
    assert len(set(hit_rates)) > 3
    assert all(0 <= rate <= 1 for rate in hit_rates)
    ours = sum(turn["cached_device_tokens"] for turn in run.table("turns").to_pylist())
    told = sum(row["device_hit_tokens"] or 0 for row in control)
    assert 0.9 * ours <= told <= ours  # before the first reading there is no difference to take


@pytest.mark.sglang
@needs_sglang
def test_a_server_that_cannot_start_is_told_with_its_last_line(tmp_path: Path) -> None:
    launch = {"python": str(ROOT / ".venv-sglang/bin/python"), "model": str(ROOT / "models/smollm2-135m")}
    engine = {"kind": "sglang", "launch": {**launch, "args": ["--no-such-argument"]}}
    done = concur("run", synthetic_workload(tmp_path, 1, engine=engine))
    assert done.returncode == 1
    assert "no-such-argument" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_launched_server_never_outlives_its_launcher(tmp_path: Path) -> None:
    """Any program will do in the server's place; kill -9 of the command ends Ray, the launcher and the program."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    program.chmod(0o755)
    (tmp_path / "model").mkdir()
    engine = {"kind": "sglang", "launch": {"python": str(program), "model": str(tmp_path / "model")}}
    running = Running(synthetic_workload(tmp_path, 1, engine=engine))

    def started() -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["cmdline"]) if str(program) in (p.info["cmdline"] or [])]

    wait_for(started, "the server")
    running.process.kill()
    wait_for(lambda: not started(), "the server's end")
    running.process.communicate()
