"""What a workload is simulated on: its own `simulate` section, its engine, or a recorded run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from workload_files import complaints

from concur_batch.simulator.cost import CostModel
from concur_batch.workload.catalogue import load_catalogue
from concur_batch.workload.hardware import Recorded, hardware_of, has_costs
from concur_batch.workload.loading import SIMULATED, Loaded, load

pytestmark = pytest.mark.usefixtures("place")

KNOWN = load_catalogue()
FITTED = CostModel(1.0, 0.0, 2.0, 0.0, 0.0)
LAUNCH = {"python": "gone", "model": "gone", "tp": 4, "replicas": 2}


def loaded(engine: dict[str, Any], simulate: dict[str, Any] | None = None, name: str = "Qwen/Qwen3-32B") -> Loaded:
    whole = {
        "name": "demo",
        "tasks": {"file": "tasks.jsonl", "prompt": "x"},
        "model": {"name": name, "tokenizer": "gone"},
        "engine": engine,
        **({} if simulate is None else {"simulate": simulate}),
    }
    Path("w.yaml").write_text(yaml.safe_dump(whole))
    return load("w.yaml", needed=SIMULATED)


def served(simulate: dict[str, Any] | None = None, **engine: Any) -> Loaded:
    return loaded({"kind": "sglang", **(engine or {"url": "http://gpu:1"})}, simulate)


def test_a_named_gpu_decides_sizes_and_costs() -> None:
    found = hardware_of(served({"gpu": "h100", "tp": 2}))
    deployment = KNOWN.deployment("qwen3-32b", "h100", tp=2)
    assert list(found.engines) == ["0"]
    assert found.engines["0"].pool_tokens == deployment.pool_tokens
    assert found.engines["0"].context_tokens == 40_960
    assert found.cost == deployment.cost_model()
    assert found.gpus == 2
    assert found.told == f"qwen3-32b on 2 x H100 80 GB SXM, KV pool of {deployment.pool_tokens:,} tokens"


def test_the_papers_constants_are_taken_where_they_are_asked_for() -> None:
    typical, paper = (
        hardware_of(served({"gpu": "h100", "tp": 8, **more})).cost for more in ({}, {"calibration": "paper"})
    )
    assert paper.load_seconds_per_token > 10 * typical.load_seconds_per_token
    assert paper.decode_seconds_per_kv_token == typical.decode_seconds_per_kv_token  # not one of those fitted


def test_what_the_section_leaves_out_is_as_the_engine_is_launched() -> None:
    found = hardware_of(served({"gpu": "h100"}, launch={**LAUNCH, "dp": 2, "hicache": {"write_policy": "write_back"}}))
    assert list(found.engines) == ["0.0", "0.1", "1.0", "1.1"]
    assert found.gpus == 16
    engine = found.engines["1.0"]
    assert engine.pool_tokens == KNOWN.deployment("qwen3-32b", "h100", tp=4).pool_tokens
    assert engine.hicache is not None
    assert (engine.hicache.host_tokens, engine.hicache.write_policy) == (2 * engine.pool_tokens, "write_back")
    told = hardware_of(served({"gpu": "h100", "tp": 8, "replicas": 1, "hicache": {"ratio": 1.5}}, launch=LAUNCH))
    assert list(told.engines) == ["0"]
    assert told.gpus == 8
    host = told.engines["0"].hicache
    assert host is not None
    assert host.host_tokens == int(1.5 * KNOWN.deployment("qwen3-32b", "h100", tp=8).pool_tokens)


def test_replicas_that_serve_already_count() -> None:
    found = hardware_of(served({"gpu": "h200"}, urls=["http://a:1", "http://b:1", "http://c:1"]))
    assert list(found.engines) == ["0", "1", "2"]


def test_the_section_sets_pool_pages_eviction_and_schedule() -> None:
    section = {"gpu": "h100", "tp": 2, "pool_tokens": 5000, "page_size": 16, "eviction": "lfu", "schedule": "lpm"}
    engine = hardware_of(served(section)).engines["0"]
    assert (engine.pool_tokens, engine.page_size, engine.eviction, engine.schedule) == (5000, 16, "lfu", "lpm")


@pytest.mark.parametrize(
    ("section", "engine", "expected"),
    [({}, {}, False), ({}, {"sessions": True}, True), ({"sessions": False}, {"sessions": True}, False),
     ({"sessions": True}, {}, True)],
)  # fmt: skip
def test_session_tags_are_the_engines_unless_the_section_says_otherwise(
    section: dict[str, object], engine: dict[str, object], expected: bool
) -> None:
    found = hardware_of(served({"gpu": "h100", "tp": 8, **section}, url="http://a:1", **engine))
    assert found.engines["0"].sessions == expected == ("session tags" in found.told)
    own = loaded({"kind": "simulated", "script": "s.jsonl", **engine}, section)
    assert hardware_of(own).engines["0"].sessions == expected


def test_a_model_by_its_config_and_by_its_directory(place: Path) -> None:
    config = {key: value for key, value in KNOWN.models["qwen3-8b"].items() if key != "source"}
    (place / "mine").mkdir()
    (place / "mine" / "config.json").write_text(json.dumps(config))
    pool_tokens = KNOWN.deployment("qwen3-8b", "h100").pool_tokens
    for name in ("mine", "mine/config.json"):
        assert hardware_of(served({"gpu": "h100", "model": name})).engines["0"].pool_tokens == pool_tokens
    launched = served({"gpu": "h100"}, launch={"python": "gone", "model": "mine"})
    assert hardware_of(launched).engines["0"].pool_tokens == pool_tokens


def test_a_simulated_engine_has_its_own_sizes_and_costs_on_its_own_clock() -> None:
    engine = {"kind": "simulated", "script": "s.jsonl", "pool_tokens": 9000, "time_scale": 4, "replicas": 2}
    workload = loaded(engine, {"eviction": "slru"})
    assert has_costs(workload)
    found = hardware_of(workload)
    assert list(found.engines) == ["0", "1"]
    assert (found.engines["0"].pool_tokens, found.engines["0"].eviction) == (9000, "slru")
    assert found.cost.decode_step_seconds == 0.02 / 4
    assert found.cost.prefill_seconds_per_token == 2e-4 / 4
    assert found.gpus is None


def test_a_recorded_run_has_the_sizes_that_its_manifest_tells_and_the_fitted_costs() -> None:
    manifest = {"engine": [{"page_size": 8, "context_tokens": 4096}], "pools": {"0": 3000, "1": 5000}, "workload": {}}
    workload = served()
    assert not has_costs(workload)
    found = hardware_of(workload, Recorded.of(manifest), FITTED)
    assert {name: engine.pool_tokens for name, engine in found.engines.items()} == {"0": 3000, "1": 5000}
    assert {(engine.page_size, engine.context_tokens) for engine in found.engines.values()} == {(8, 4096)}
    assert found.cost == FITTED
    assert found.told == "the run's engine, costs fitted to its turns, 2 KV pools of 3,000 to 5,000 tokens"
    told = hardware_of(served({"pool_tokens": 700}), Recorded.of(manifest), FITTED)
    assert {engine.pool_tokens for engine in told.engines.values()} == {700}


def test_a_run_whose_own_workload_names_the_gpu_keeps_its_pools_on_it() -> None:
    section = {"gpu": "h100", "tp": 2}
    recorded = Recorded.of({"engine": [{"page_size": 8}], "pools": {"0": 3000}, "workload": {"simulate": section}})
    same = hardware_of(served(section), recorded)
    assert (same.engines["0"].pool_tokens, same.engines["0"].page_size) == (3000, 8)
    assert hardware_of(served({**section, "pool_tokens": 700}), recorded).engines["0"].pool_tokens == 700
    other = hardware_of(served({"gpu": "h200", "tp": 2}), recorded)
    assert other.engines["0"].pool_tokens == KNOWN.deployment("qwen3-32b", "h200", tp=2).pool_tokens


@pytest.mark.parametrize(
    ("simulate", "line"),
    [
        (None, "no hardware is named; add `simulate: {gpu: …}`, one of h100, h200, a100, l40s, or --from a run whose "
               "turns tell the costs"),
        ({"gpu": "h1000"}, "there is no GPU 'h1000' in the catalogue; did you mean `h100`?"),
        ({"gpu": "l40s"}, "qwen3-32b does not fit on 1 x L40S 48 GB: 25.2 GB a GPU are lacking (65.5 GB of weights a "
                          "GPU, and 0.853 of its 48.3 GB for them and the KV pool); give more or larger GPUs, another "
                          "tp, or a larger mem_fraction"),
        ({"gpu": "h100", "tp": 3}, "tp 3 does not divide the 64 attention heads of qwen3-32b; give more or larger "
                                   "GPUs, another tp, or a larger mem_fraction"),
        ({"gpu": "h100", "pool_tokens": 3}, "`pool_tokens` and `context_tokens` leave no room for a prompt; give a "
                                            "larger pool"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_told_in_a_line(simulate: dict[str, Any] | None, line: str) -> None:
    workload = served(simulate)
    (found,) = complaints(lambda: hardware_of(workload))
    assert found.partition(": simulate: ")[2] == line


def test_a_model_that_nobody_knows_and_a_host_tier_without_a_link_are_told() -> None:
    unknown = loaded({"kind": "sglang", "url": "http://gpu:1"}, {"gpu": "h100"}, name="mine")
    (found,) = complaints(lambda: hardware_of(unknown))
    assert "which model it is cannot be told from `model.name`, mine; add simulate.model: qwen3-32b" in found
    tiered, manifest = served({"hicache": {}}), {"pools": {"0": 3000}, "workload": {}}
    (found,) = complaints(lambda: hardware_of(tiered, Recorded.of(manifest), FITTED))
    assert found.endswith("what HiCache takes depends on the link to the host's memory; add simulate.gpu")
    unsized = served()
    (found,) = complaints(lambda: hardware_of(unsized, Recorded.of({"workload": {}}), FITTED))
    assert found.endswith("the run does not tell the size of its KV pool; add simulate.pool_tokens")
