"""Settings changed while a run goes on: what is taken, what is said of the rest."""

from __future__ import annotations

import pytest

from concur_batch.workload.change import changed, differences, read_control
from concur_batch.workload.errors import InputError
from concur_batch.workload.schema import AgentCap, AnyControl, Concur, NoControl, RequestCap, Steady

CONCUR = Concur(policy="concur")
EVERY = (NoControl(policy="none"), RequestCap(policy="request_cap", cap=3), AgentCap(policy="agent_cap", cap=3), CONCUR,
         Steady(policy="steady"))  # fmt: skip


def problems(*settings: str, control: AnyControl = CONCUR) -> list[str]:
    with pytest.raises(InputError) as caught:
        changed(control, settings)
    return str(caught.value).splitlines()


def test_several_settings_change_and_the_others_stay() -> None:
    after = changed(CONCUR, ["control.u_high=0.6", "control.extensions.growth_turns=3", "control.max_window=40"])
    assert after == Concur.model_validate(
        {**CONCUR.model_dump(), "u_high": 0.6, "max_window": 40, "extensions": {"growth_turns": 3}}
    )
    assert differences(CONCUR, after) == [
        "control.extensions.growth_turns null -> 3",
        "control.u_high 0.5 -> 0.6",
        "control.max_window null -> 40",
    ]


def test_an_empty_value_is_null_and_the_weights_of_groups_are_set_as_a_block() -> None:
    aged = changed(CONCUR, ["control.resume_age_seconds=5"])
    assert changed(aged, ["control.resume_age_seconds="]) == CONCUR
    shares = changed(CONCUR, ["control.extensions.shares={a: 2}", "control.extensions.shares.b=3"])
    assert shares.extensions.shares == {"a": 2, "b": 3}


@pytest.mark.parametrize("control", EVERY)
def test_every_policy_reads_back_as_itself(control: AnyControl) -> None:
    again = read_control(control.model_dump(mode="json"))
    assert (again, type(again)) == (control, type(control))
    assert changed(control, ["control.period_seconds=0.5"]).period_seconds == 0.5
    assert differences(control, again) == []


def test_all_that_is_wrong_is_told_at_once_as_for_a_run() -> None:
    assert problems("control.u_high=1.6", "control.alpah=2") == [
        "set control.u_high=1.6: control.u_high: 1.6 is above 1; give a share from 0 to 1",
        "set control.alpah=2: control.alpah: is no key of this block; did you mean `alpha`?",
    ]
    assert problems("control.u_low=0.7") == [
        "set control.u_low=0.7: control: u_low 0.7 is above u_high 0.5; give u_low <= u_high"
    ]
    (line,) = problems("control.u_high=high")
    assert line == 'set control.u_high=high: control.u_high: "high" is a text; give a share from 0 to 1, without quotes'
    assert problems("control.u_high") == [
        "set control.u_high: is not of the form key.path=value; write control.u_high=0.6"
    ]


@pytest.mark.parametrize("setting", ["tasks.seed=3", "control=3", "controls.alpha=3", "=3"])
def test_only_control_is_set(setting: str) -> None:
    (line,) = problems(setting)
    assert "cannot be set while the run goes on; give keys under `control.`" in line


def test_another_policy_is_refused_and_the_same_one_is_no_change() -> None:
    for policy in ("none", "steady", "nonsense"):
        (line,) = problems(f"control.policy={policy}")
        assert "a running batch keeps its policy, concur; start another run" in line
    assert changed(CONCUR, ["control.policy=concur"]) == CONCUR


@pytest.mark.parametrize(
    "key", ["initial_window", *(f"extensions.{name}" for name in ("kv_budget_tokens", "deadline_seconds",
                                                                 "long_request_tokens"))]
)  # fmt: skip
def test_what_is_read_at_the_start_is_refused(key: str) -> None:
    (line,) = problems(f"control.{key}=7")
    assert f"control.{key}: is fixed for the run" in line
    assert problems("control.extensions={kv_budget_tokens: 7}")[0].count("kv_budget_tokens: is fixed") == 1
