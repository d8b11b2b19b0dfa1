"""`--set key.path=value`."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import WORKLOAD, complaints, loaded, write_workload

from concur_batch.workload.loading import load
from concur_batch.workload.overrides import apply_override
from concur_batch.workload.schema import AgentCap, NoControl, SglangEngine, SimulatedEngine, TokenWindow, VllmEngine
from concur_batch.workload.settings import settings_of
from concur_batch.workload.source import Origin, Source

keys = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)
leaves = st.none() | st.booleans() | st.integers(-999, 999) | st.from_regex(r"[ -~]{0,12}", fullmatch=True)
documents = st.dictionaries(
    keys, st.recursive(leaves, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=8)
)


def at(document: Any, path: list[str]) -> Any:
    for key in path:
        document = document[key]
    return document


def blocks_on(document: Any, path: list[str]) -> bool:
    """Whether the path leads through blocks and null values only."""
    for key in path[:-1]:
        if not isinstance(document, dict):
            return document is None
        document = document.get(key)
    return document is None or isinstance(document, dict)


@given(documents, st.lists(keys, min_size=1, max_size=3), leaves | st.lists(leaves, max_size=3))
def test_an_override_sets_its_value_and_nothing_else(document: dict[str, Any], path: list[str], value: Any) -> None:
    source = Source("w.yaml", copy.deepcopy(document))
    override = f"{'.'.join(path)}={json.dumps(value)}"
    if not blocks_on(document, path):
        [line] = complaints(lambda: apply_override(source, override))
        assert "is a single value, not a block of keys; set it as a whole" in line
        return
    apply_override(source, override)
    assert at(source.value, path) == value
    assert source.origins[tuple(path)] == Origin(f"--set {override}", None)
    was: Any = document
    now: Any = source.value
    for key in path:  # beside the path, nothing changed
        was = was if isinstance(was, dict) else {}
        assert {k: v for k, v in now.items() if k != key} == {k: v for k, v in was.items() if k != key}
        was, now = was.get(key), now[key]


@pytest.mark.usefixtures("place")
class TestOnAWorkload:
    def test_values_are_yaml(self) -> None:
        workload = loaded(
            overrides=(
                "tasks.samples=4",
                "model.sampling.stop=[a, 'b=c']",
                "agent.system=be: brief".replace(": ", ":"),
                "model.sampling.temperature=1e-1",
                "tools.names=[bash, submit]",
                "agent.limits.output_tokens=",
            )
        ).workload
        settings = settings_of(workload)
        assert settings["tasks.samples"] == 4
        assert settings["model.sampling.stop"] == ["a", "b=c"]
        assert settings["agent.system"] == "be:brief"
        assert settings["model.sampling.temperature"] == 0.1
        assert settings["tools.names"] == ["bash", "submit"]
        assert settings["agent.limits.output_tokens"] is None

    def test_the_last_one_stands(self) -> None:
        assert loaded(overrides=("tasks.seed=1", "tasks.seed=2")).workload.tasks.seed == 2

    def test_a_block_that_was_left_to_its_default(self) -> None:
        control = loaded(overrides=("control.admit_share=0.8",)).workload.control
        assert isinstance(control, TokenWindow)
        assert control.admit_share == 0.8

    def test_another_policy_drops_what_only_the_old_one_knows(self) -> None:
        block = "control: {policy: concur, alpha: 3, u_high: 0.9, period_seconds: 5}\n"
        control = loaded(block, overrides=("control.policy=none",)).workload.control
        assert control == NoControl(policy="none", period_seconds=5)

    def test_what_the_new_policy_needs_can_be_set_before_or_after_it(self) -> None:
        block = "control: {policy: concur, alpha: 3}\n"
        for overrides in (("control.cap=7", "control.policy=agent_cap"), ("control.policy=agent_cap", "control.cap=7")):
            assert loaded(block, overrides=overrides).workload.control == AgentCap(policy="agent_cap", cap=7)

    def test_a_typing_error_is_not_dropped_with_them(self) -> None:
        block = "control: {policy: concur, alpah: 3}\n"
        assert complaints(lambda: loaded(block, overrides=("control.policy=none",))) == [
            "w.yaml:11: control.alpah: is no key of this block; the keys here are period_seconds, victim_order, "
            "resume_order, resume_age_seconds, max_consecutive_pauses, move_evicted_share, extensions, policy"
        ]

    def test_another_engine(self) -> None:
        engine = loaded(overrides=("engine.kind=sglang", "engine.url=http://gpu-7:30000")).workload.engine
        assert engine == SglangEngine(kind="sglang", url="http://gpu-7:30000")
        text = WORKLOAD.partition("engine:")[0] + "engine: {kind: sglang, url: 'http://x', retries: 1}\n"
        engine = load(write_workload(text), ["engine.kind=vllm"]).workload.engine
        assert engine == VllmEngine(kind="vllm", url="http://x", retries=1)
        engine = load(
            write_workload(text), ["engine.kind=simulated", "engine.synthetic={turns: [1, 2]}", "tools.kind=synthetic"]
        ).workload.engine
        assert isinstance(engine, SimulatedEngine)
        assert engine.synthetic is not None
        assert engine.synthetic.turns == (1, 2)

    def test_an_item_of_a_list(self) -> None:
        workload = loaded("verify: [{kind: answer}]\n", overrides=("verify.0.match=number",)).workload
        assert settings_of(workload)["verify.0.match"] == "number"

    @pytest.mark.parametrize(
        ("override", "line"),
        [
            ("alpha", "--set alpha: is not of the form key.path=value; write --set control.policy=none"),
            ("=4", "--set =4: is not of the form key.path=value; write --set control.policy=none"),
            ("a..b=4", "--set a..b=4: is not of the form key.path=value; write --set control.policy=none"),
            (
                "control.alpha=[1",
                "--set control.alpha=[1: the value is not YAML: expected ',' or ']', but got '<stream end>'; quote it "
                "for YAML and for the shell",
            ),
            (
                "name.x=1",
                "--set name.x=1: name: is a single value, not a block of keys; set it as a whole",
            ),
            (
                "verify.0.kind=answer",
                "--set verify.0.kind=answer: verify: the list has no item 0; set the list as a whole",
            ),
            (
                "control.admit_shrae=0.4",
                "--set control.admit_shrae=0.4: control.admit_shrae: is no key of this block; did you mean "
                "`admit_share`?",
            ),
            (
                "control.policy=agent_cap",
                "--set control.policy=agent_cap: control.cap: is missing; add it: Active agents in a pool",
            ),
            (
                "tasks.file=gone.jsonl",
                "--set tasks.file=gone.jsonl: tasks.file: there is no file gone.jsonl; make it, or mend the path: it "
                "is relative to the workload file",
            ),
            (
                "agent.limits.turns=many",
                '--set agent.limits.turns=many: agent.limits.turns: "many" is a text; give a whole number, at least 1, '
                "without quotes",
            ),
        ],
    )
    def test_a_mistake_names_the_argument(self, override: str, line: str) -> None:
        assert complaints(lambda: loaded("verify: []\n", overrides=(override,))) == [line]
