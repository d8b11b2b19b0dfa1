"""Control of an engine that tells no signals: what is estimated, from what, and what the law does with it."""

from __future__ import annotations

from typing import Any

import pytest
from agents_by_hand import arrive, tell
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.control.governor import Governor, Row
from concur_batch.control.member import Spent, State
from concur_batch.engine.protocol import Reading
from concur_batch.trace.encode import encode
from concur_batch.workload.schema import AnyControl, Concur, Steady


class Blind:
    """A governor over one pool whose engine tells only that it is there, once a second."""

    def __init__(self, control: AnyControl, pool_tokens: int | None = 1000) -> None:
        self.governor = Governor(control, ["p"], 100)
        self.governor.admission.windows["p"].pool_tokens = pool_tokens
        self.seconds = 0.0
        self.governor.prime({"p": Reading(0.0)}, 0.0)
        self.governor.begin(0.0)

    def row(self, spent: Spent | None = None, **told: Any) -> Row:
        self.seconds += 1.0
        if spent is not None:
            self.governor.spent("p", spent)
        _, (row,) = self.governor.period({"p": [Reading(self.seconds, **told)]}, self.seconds)
        encode("control", row)  # raises where the table cannot hold it
        return row


def concur(**fields: Any) -> Concur:
    return Concur(policy="concur", **{"initial_window": 4, **fields})


def test_u_is_the_histories_of_those_who_generate_over_the_pool() -> None:
    run = Blind(concur())
    arrive(run.governor.admission, "abcdef", tokens=200)  # two of them wait for a place
    row = run.row()
    assert (row["usage"], row["locked_tokens"], row["pool_tokens"], row["estimated"]) == (0.8, 800, 1000, True)
    tell(run.governor.admission, "ab", State.TOOL_WAIT, 1.0, tokens=210)
    tell(run.governor.admission, "c", State.ACTIVE, 1.0, tokens=450)
    assert run.row()["usage"] == 0.65
    tell(run.governor.admission, "c", State.ACTIVE, 2.0, tokens=4500)
    assert run.row()["usage"] == 1.0  # what the pool does not hold waits in the engine
    assert (row["hit_rate"], row["occupancy"], row["phase"]) == (None, None, "warmup")


def test_h_is_of_the_requests_that_tell_their_hits() -> None:
    run = Blind(concur())
    arrive(run.governor.admission, "a", tokens=100)
    assert run.row()["hit_rate"] is None
    assert run.row(Spent(100, 50, 0))["hit_rate"] == 0.5
    row = run.row(Spent(200, 20, 0))
    assert (row["hit_rate"], row["lookup_tokens"], row["device_hit_tokens"]) == (0.1, 200, 20)
    assert run.row(Spent(longest_seconds=3.0))["hit_rate"] is None  # a turn that tells nothing is no miss
    assert run.row(Spent(100, 90, 0))["hit_rate"] == 0.9
    assert (row["drift_hit_rate"], row["drift_lookups"]) == (None, None)


@pytest.mark.parametrize("control", [concur(), Steady(policy="steady", initial_window=4)])
def test_the_law_cuts_by_both_and_grows_by_the_estimate(control: AnyControl) -> None:
    run = Blind(control)
    arrive(run.governor.admission, "abcdefghijklmnopqrstuvwxyz", tokens=10)
    assert run.row(Spent(10, 0, 0))["branch"] == "grow"
    assert run.row()["branch"] == "grow"  # no turn has ended, and yet the agents are counted
    for agent in "abcdef":
        tell(run.governor.admission, agent, State.ACTIVE, 2.0, tokens=150)
    row = run.row(Spent(900, 45, 0))
    assert (row["hit_rate"], row["branch"]) == (0.05, "cut")
    assert row["window_after"] == row["window_before"] // 2


def test_without_the_pools_size_the_window_stays() -> None:
    run = Blind(concur(), None)
    arrive(run.governor.admission, "abcdef", tokens=10)
    for _ in range(3):
        row = run.row(Spent(100, 0, 0))
        assert (row["window_after"], row["branch"], row["reason"]) == (4, "hold", "the engine tells no KV usage")
        assert (row["usage"], row["estimated"]) == (None, False)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=30))
def test_without_hits_nothing_is_ever_cut(steps: list[int]) -> None:
    run = Blind(concur())
    arrive(run.governor.admission, "abcd", tokens=10)
    before = 4
    for tokens in steps:
        tell(run.governor.admission, "abcd", State.ACTIVE, run.seconds, tokens=tokens)
        row = run.row(Spent(longest_seconds=1.0))
        usage = min(1.0, 4 * tokens / 1000) if row["window_before"] >= 4 else None
        assert row["usage"] == usage
        assert row["window_after"] == min(100, before + 2 if usage is not None and usage < 0.2 else before)
        before = row["window_after"]


def test_an_engine_that_has_ever_told_its_usage_is_not_second_guessed() -> None:
    run = Blind(concur())
    arrive(run.governor.admission, "abcd", tokens=200)
    told = {"pool_tokens": 1000, "locked_tokens": 300, "input_tokens_total": 10, "device_hit_tokens_total": 90}
    assert (run.row(**told)["usage"], run.row(**told)["estimated"]) == (0.3, False)
    row = run.row()  # the gauges are missing for once
    assert (row["usage"], row["estimated"], row["reason"]) == (None, False, "the engine tells no KV usage")


def test_the_pools_size_is_kept_where_no_reading_tells_it() -> None:
    run = Blind(concur(), 1000)
    run.row()
    assert run.governor.admission.windows["p"].pool_tokens == 1000
