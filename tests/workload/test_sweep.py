"""Settings of a sweep: every combination, but none that a policy does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from workload_files import complaints

from concur_batch.workload.loading import load
from concur_batch.workload.sweep import POLICIES, Setting, make_settings, read_sweep

SWEEPS = [read_sweep("control.u_high=0.4,0.5"), read_sweep("simulate.tp=2,4")]


def test_every_policy_under_every_combination_that_concerns_it() -> None:
    assert [setting.name for setting in make_settings(["concur", "none"], SWEEPS)] == [
        "concur u_high=0.4 tp=2", "concur u_high=0.4 tp=4", "concur u_high=0.5 tp=2", "concur u_high=0.5 tp=4",
        "none tp=2", "none tp=4",
    ]  # fmt: skip
    assert make_settings(["none"], SWEEPS[:1]) == [Setting("none", ("control.policy=none",))]


def test_values_are_yaml_and_come_back_as_such() -> None:
    sweep = read_sweep("replay.synthetic.turns=[1, 2],[3, 4]")
    assert sweep.values == ([1, 2], [3, 4])
    (first, _) = make_settings(["none"], [sweep])
    assert first == Setting("none turns=[1, 2]", ("control.policy=none", "replay.synthetic.turns=[1, 2]"))
    assert read_sweep("simulate.gpu=h100, h200").values == ("h100", "h200")
    assert read_sweep("control.max_window=null,8").values == (None, 8)


def test_a_key_that_no_policy_has_is_left_to_the_workloads_own_check() -> None:
    assert all(read_sweep("control.u_hihg=0.4").concerns(policy) for policy in POLICIES)
    assert all(read_sweep("control.period_seconds=1,2").concerns(policy) for policy in POLICIES)
    assert [policy for policy in POLICIES if read_sweep("control.cap=3").concerns(policy)] == [
        "request_cap", "agent_cap",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("control.u_high", "--sweep control.u_high: is not of the form key.path=value,value; write --sweep "
                           "control.u_high=0.4,0.5"),
        ("=3", "--sweep =3: is not of the form key.path=value,value; write --sweep control.u_high=0.4,0.5"),
        ("control.cap=", "--sweep control.cap=: has no values; write them with commas between"),
        ("control.policy=none,concur", "--sweep control.policy=none,concur: policies are no values of a key; give each "
                                       "as --policy NAME"),
    ],
)  # fmt: skip
def test_a_sweep_that_is_none(text: str, line: str) -> None:
    assert complaints(lambda: read_sweep(text)) == [line]


@pytest.mark.usefixtures("place")
def test_a_simulation_needs_only_the_files_that_it_reads() -> None:
    Path("w.yaml").write_text(
        "name: demo\ntasks: {file: gone.jsonl, prompt: x}\nmodel: {name: m, tokenizer: gone}\n"
        "engine: {kind: sglang, launch: {python: gone, model: gone}}\n"
    )
    found = complaints(lambda: load("w.yaml", needed=("tasks",)))
    assert len(found) == 1
    assert found[0].startswith("w.yaml:2: tasks.file: there is no file gone.jsonl")
    assert load("w.yaml", needed=("replay",)).workload.model.name == "m"
