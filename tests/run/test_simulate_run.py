"""`concur simulate --from` a run that `concur run` has just made: the same agents, and the cache figures of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.run.command import concur, finished_run, synthetic_workload


def test_a_run_is_simulated_from_its_own_directory(tmp_path: Path) -> None:
    engine = {"kind": "simulated", "synthetic": {"turns": [5, 5]}, "time_scale": 5, "pool_tokens": 4096}
    workload = synthetic_workload(tmp_path, 24, engine=engine, control={"policy": "agent_cap", "cap": 12})
    summary, run = finished_run(workload)
    assert summary["finished"] == 24

    done = concur("simulate", "--from", run.path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    own, free = found["settings"]
    assert (own["name"], free["name"], own["other_work"], free["other_work"]) == ("agent_cap", "none", [], [])
    assert found["agents"] == 24
    assert found["recorded"]["costs"] == "named"  # the simulated engine's own
    assert found["recorded"]["simulated_seconds"] == own["seconds"][0]
    assert own["window_max"] == 12
    assert own["device_hit_rate"] == pytest.approx(summary["hit_rate"], abs=0.1)
    assert own["recomputed_share"] == pytest.approx(summary["recomputed_share"], abs=0.2)

    # Under a workload whose engine is a real one, the costs are those that the run's turns tell.
    whole = yaml.safe_load(workload.read_text())
    whole["engine"] = {"kind": "sglang", "url": "http://gpu:30000"}
    (tmp_path / "real.yaml").write_text(yaml.safe_dump(whole))
    done = concur("simulate", tmp_path / "real.yaml", "--from", run.path, "--policy", "agent_cap", "--json")
    assert done.returncode == 0, done.stderr
    fitted = json.loads(done.stdout)
    assert fitted["recorded"]["costs"] == "fitted"
    (setting,) = fitted["settings"]
    assert "KV pool of 4,096 tokens" in setting["hardware"]
    assert setting["device_hit_rate"] == pytest.approx(summary["hit_rate"], abs=0.1)
