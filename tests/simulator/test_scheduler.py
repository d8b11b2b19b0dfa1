"""The scheduler's rules, by worked example."""

from collections.abc import Iterable

import numpy as np
import pytest
from pydantic import ValidationError

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.ratio import NewTokenRatio
from concur_batch.simulator.request import Request
from concur_batch.simulator.scheduler import Scheduler, Step
from concur_batch.simulator.sequence import Sequence

# One second a computed token, ten a decode step: seconds count them.
COST = CostModel(1.0, 0.0, 10.0, 0.0, 0.0)


def make_scheduler(pool: int, **settings: float | str) -> Scheduler:
    return Scheduler(EngineConfig(pool_tokens=pool, context_tokens=1000, **settings), COST)  # type: ignore[arg-type]


def make_sequence(name: str, prompt: list[int], outputs: int, allowance: int | None = None) -> Sequence:
    said = np.arange(500, 500 + outputs, dtype=np.int32)
    request = Request(name, np.array(prompt, dtype=np.int32), said, allowance or outputs)
    return Sequence(request, 0.0, allowance or outputs)


def step(scheduler: Scheduler, max_seconds: float = 0.0) -> Step | None:
    """Launch and complete one step; decode steps one by one, unless `max_seconds` allows more."""
    launched = scheduler.launch(0.0, max_seconds)
    if launched is not None:
        scheduler.complete(launched, 0.0)
    scheduler.pool.check_integrity()
    return launched


def names(sequences: Iterable[Sequence]) -> list[str]:
    return [sequence.request.rid for sequence in sequences]


def run_to_end(scheduler: Scheduler) -> list[str]:
    while step(scheduler, float("inf")) is not None:
        pass
    return names(scheduler.take_finished())


def test_a_prefix_hit_is_not_computed_again() -> None:
    scheduler = make_scheduler(100)
    first = make_sequence("a", [1, 2, 3, 4], 3)
    scheduler.add(first)
    assert run_to_end(scheduler) == ["a"]
    # Resident: the prompt and all outputs but the last, whose KV nobody computed.
    assert scheduler.pool.evictable_tokens == 6
    second = make_sequence("b", [1, 2, 3, 4, 500, 501, 502, 9], 1)
    scheduler.add(second)
    launched = step(scheduler)
    assert launched is not None and launched.seconds == 2.0
    assert second.cached_tokens == 6
    assert (scheduler.totals.input_tokens, scheduler.totals.device_hit_tokens) == (4 + 2, 6)


def test_the_last_token_is_always_computed() -> None:
    scheduler = make_scheduler(100)
    for name in ("a", "b"):
        scheduler.add(make_sequence(name, [1, 2, 3, 4], 1))
        step(scheduler)
    assert scheduler.totals.device_hit_tokens == 3


def test_decode_tokens_are_private_until_the_end() -> None:
    scheduler = make_scheduler(100)
    scheduler.add(make_sequence("a", [1, 2, 3, 4], 9))
    step(scheduler)
    assert (scheduler.pool.tree.locked_tokens, scheduler.pool.used_tokens) == (4, 4)
    for _ in range(3):
        step(scheduler)
    assert (scheduler.pool.tree.locked_tokens, scheduler.pool.used_tokens) == (4, 7)
    assert scheduler.pool.available_tokens == 93


def test_prefill_comes_before_decode() -> None:
    scheduler = make_scheduler(100)
    scheduler.add(make_sequence("a", [1, 2], 5))
    step(scheduler)
    scheduler.add(make_sequence("b", [3, 4], 5))
    launched = step(scheduler)
    assert launched is not None and names(launched.prefill) == ["b"]
    launched = step(scheduler)
    assert launched is not None and launched.decode_steps == 1
    assert [sequence.outputs for sequence in scheduler.running] == [2, 2]


def test_a_long_prompt_is_prefilled_in_chunks_and_shares_its_last_step() -> None:
    scheduler = make_scheduler(200, chunked_prefill_tokens=10)
    scheduler.add(make_sequence("long", list(range(100, 125)), 2))
    scheduler.add(make_sequence("short", [1, 2, 3], 2))
    batches = []
    for _ in range(3):
        launched = step(scheduler)
        assert launched is not None
        batches.append((names(launched.prefill), launched.seconds))
    assert batches == [(["long"], 10.0), (["long"], 10.0), (["long", "short"], 8.0)]
    assert names(scheduler.running) == ["long", "short"]
    # Hits are counted once, at admission: the chunks in the tree are not hits of their own request.
    assert scheduler.totals.device_hit_tokens == 0


def test_a_chunk_ends_on_a_page() -> None:
    scheduler = make_scheduler(200, chunked_prefill_tokens=10, page_size=4)
    scheduler.add(make_sequence("long", list(range(100, 121)), 2))
    seconds = []
    while not scheduler.running:
        launched = step(scheduler)
        assert launched is not None
        seconds.append(launched.seconds)
    assert seconds == [8.0, 8.0, 5.0]


def test_the_first_that_does_not_fit_stops_those_behind_it() -> None:
    scheduler = make_scheduler(60)
    scheduler.add(make_sequence("a", [1] * 30, 10))
    scheduler.add(make_sequence("b", [2] * 30, 10))
    scheduler.add(make_sequence("c", [3], 2))
    launched = step(scheduler)
    assert launched is not None and names(launched.prefill) == ["a"]
    for _ in range(8):
        launched = step(scheduler)
        assert launched is not None and launched.decode_steps == 1
    assert names(scheduler.waiting) == ["b", "c"]
    step(scheduler)
    assert names(scheduler.take_finished()) == ["a"]
    launched = step(scheduler)
    assert launched is not None and names(launched.prefill) == ["b", "c"]
    assert scheduler.pool.tree.evicted_tokens_total > 0


def test_after_a_refusal_nobody_is_asked_until_a_request_leaves() -> None:
    """The estimate falls as decoding goes well, so that `b` would fit earlier: SGLang does not look."""
    scheduler = make_scheduler(100)
    scheduler.add(make_sequence("a", [1] * 10, 20, allowance=80))
    scheduler.ratio.current = 1.0
    step(scheduler)
    scheduler.add(make_sequence("b", [2] * 10, 5))
    step(scheduler)
    scheduler.ratio.current = 0.1
    for _ in range(17):
        step(scheduler)
    assert names(scheduler.running) == ["a"]
    step(scheduler)
    launched = step(scheduler)
    assert launched is not None and names(launched.prefill) == ["b"]


def test_a_new_request_needs_its_whole_allowance_beside_the_expected_rest_of_the_others() -> None:
    """Room for `b`: 100 - 10 (a's rows) - 0.7 x 39 (a's expected rest) = 62.7 > 10 + allowance + 1."""
    for allowance, fits in ((51, True), (52, False)):
        scheduler = make_scheduler(100)
        scheduler.add(make_sequence("a", [1] * 10, 40))
        step(scheduler)
        scheduler.add(make_sequence("b", [2] * 10, 1, allowance))
        launched = step(scheduler)
        assert launched is not None and bool(launched.prefill) == fits


def test_when_the_pool_runs_dry_the_one_with_the_fewest_outputs_goes_back_to_the_tail() -> None:
    scheduler = make_scheduler(50, conservativeness=0.01)
    scheduler.add(make_sequence("old", [1] * 5, 30))
    for _ in range(6):
        step(scheduler)
    scheduler.add(make_sequence("young", [2] * 5, 25))
    step(scheduler)
    waiting = make_sequence("waiting", [3] * 30, 10)
    scheduler.add(waiting)
    while not scheduler.totals.retracted_requests:
        assert step(scheduler) is not None
    (young,) = (s for s in scheduler.waiting if s.request.rid == "young")
    assert names(scheduler.running) == ["old"]
    assert names(scheduler.waiting) == ["waiting", "young"]
    assert scheduler.totals.retracted_input_tokens == 5
    assert scheduler.totals.retracted_output_tokens == young.outputs > 0
    # Its prompt stays cached, its outputs do not.
    assert scheduler.pool.tree.match(young.tokens)[1] == 5
    hits_before = scheduler.totals.device_hit_tokens
    computed, outputs = scheduler.totals.computed_tokens, young.outputs
    assert set(run_to_end(scheduler)) == {"old", "young", "waiting"}
    assert young.outputs == 25
    assert scheduler.totals.device_hit_tokens == hits_before, "recomputation counts no hits"
    assert scheduler.totals.computed_tokens >= computed + outputs


def test_equal_outputs_the_longest_prompt_is_retracted() -> None:
    scheduler = make_scheduler(60, conservativeness=0.01)
    scheduler.add(make_sequence("short", [1] * 5, 29))
    step(scheduler)
    scheduler.add(make_sequence("long", [2] * 10, 29))
    while not scheduler.totals.retracted_requests:
        assert step(scheduler) is not None
    assert names(scheduler.running) == ["short"]


def test_the_new_token_ratio() -> None:
    ratio = NewTokenRatio(1.0)
    assert ratio.current == pytest.approx(0.7)
    ratio.decay(300)
    assert ratio.current == pytest.approx(0.7 - 0.5 * (0.7 - 0.098))
    ratio.decay(10_000)
    assert ratio.current == pytest.approx(0.098)
    half_way = make_sequence("a", [1], 100)
    half_way.outputs = 40
    ratio.after_retraction([half_way])
    assert ratio.current == pytest.approx((40 + 20) / 101)
    ratio.reset()
    assert ratio.current == pytest.approx(0.7)
    assert NewTokenRatio(5.0).current == 1.0


def test_waiting_requests_keep_their_prefixes_fresh() -> None:
    """Every so many passes the waiting ones' prefixes count as used, so that others go first."""
    evicted = {}
    for passes in (0, 1):
        scheduler = make_scheduler(64, max_running_requests=1, refresh_passes=passes)
        scheduler.add(make_sequence("history", [1] * 20, 1))
        step(scheduler)
        scheduler.add(make_sequence("other", [2] * 20, 1))
        step(scheduler)
        scheduler.add(make_sequence("now", [3] * 20, 10))
        waiting = make_sequence("next turn", [1] * 20 + [9], 1)
        scheduler.add(waiting)
        run_to_end(scheduler)
        evicted[passes] = waiting.cached_tokens
    assert evicted == {0: 0, 1: 20}


def test_lpm_takes_the_longest_cached_prefix_first() -> None:
    scheduler = make_scheduler(1000, schedule="lpm")
    scheduler.add(make_sequence("history", [1] * 60, 1))
    step(scheduler)
    for name, prompt in (("new", [9] * 5), ("part", [1] * 40 + [8]), ("most", [1] * 55 + [7])):
        scheduler.add(make_sequence(name, prompt, 2))
    launched = step(scheduler)
    assert launched is not None and names(launched.prefill) == ["most", "part", "new"]


def test_lpm_lets_one_of_those_with_the_same_new_prefix_go_ahead() -> None:
    """SGLang 0.5.23: who has at most 32 cached tokens and shares 32 with one before it waits behind all others."""
    scheduler = make_scheduler(1000, schedule="lpm")
    for name, prompt in (("a", [1] * 40 + [2]), ("same as a", [1] * 40 + [3]), ("little in common", [1] * 31 + [4])):
        scheduler.add(make_sequence(name, prompt, 2))
    launched = step(scheduler)
    assert launched is not None and names(launched.prefill) == ["a", "little in common", "same as a"]


def test_lpm_is_first_come_first_served_when_many_wait() -> None:
    for waiting, first in ((128, "hit"), (129, "r0")):
        scheduler = make_scheduler(10_000, schedule="lpm", max_running_requests=1)
        scheduler.add(make_sequence("history", [1] * 60, 1))
        step(scheduler)
        for number in range(waiting - 1):
            scheduler.add(make_sequence(f"r{number}", [100 + number], 1))
        scheduler.add(make_sequence("hit", [1] * 60 + [2], 1))
        launched = step(scheduler)
        assert launched is not None and names(launched.prefill) == [first]


def test_a_prefill_batch_lets_nobody_in_beyond_its_budget() -> None:
    """20 tokens fill the budget of 15: `c` waits though the chunk has room for it."""
    scheduler = make_scheduler(1000, max_prefill_tokens=15, chunked_prefill_tokens=100)
    for name in "abc":
        scheduler.add(make_sequence(name, [ord(name)] * 10, 2))
    launched = step(scheduler)
    assert launched is not None and names(launched.prefill) == ["a", "b"]


@pytest.mark.parametrize(("eviction", "kept"), [("lru", [0, 10]), ("priority", [10, 10])])
def test_priority_gives_up_outputs_before_prompts(eviction: str, kept: list[int]) -> None:
    """Two finished requests of 10 + 10 tokens each: lru evicts the older one's output and prompt."""
    scheduler = make_scheduler(45, eviction=eviction)
    prompts = [make_sequence("", [number] * 10, 11) for number in (1, 2)]
    for sequence in prompts:
        scheduler.add(sequence)
        run_to_end(scheduler)
    assert scheduler.pool.evictable_tokens == 40
    scheduler.pool.tree.evict(17)
    assert scheduler.pool.evictable_tokens == 20
    assert [scheduler.pool.tree.match(sequence.tokens, 10)[1] for sequence in prompts] == kept


def test_the_running_limit() -> None:
    scheduler = make_scheduler(1000, max_running_requests=2)
    for name in "abc":
        scheduler.add(make_sequence(name, [ord(name)], 5))
    step(scheduler)
    assert names(scheduler.running) == ["a", "b"]
    assert EngineConfig(pool_tokens=1_000_000, context_tokens=131_072).running_limit == 3906
    assert EngineConfig(pool_tokens=100_000, context_tokens=131_072).running_limit == 2048
    assert EngineConfig(pool_tokens=1000, context_tokens=131_072).running_limit == 500


def test_decode_stretches_stop_at_a_completion_and_at_the_horizon() -> None:
    scheduler = make_scheduler(1000)
    scheduler.add(make_sequence("a", [1], 8))
    scheduler.add(make_sequence("b", [2], 30))
    step(scheduler)
    launched = step(scheduler, 45.0)
    assert launched is not None and (launched.decode_steps, launched.seconds) == (4, 40.0)
    launched = step(scheduler, 1e9)
    assert launched is not None and launched.decode_steps == 3
    assert names(scheduler.take_finished()) == ["a"]


def test_costs_by_hand() -> None:
    cost = CostModel(1.0, 0.5, 10.0, 2.0, 0.1)
    # 3 new after 4 cached attend to 5 + 6 + 7 = 18 tokens.
    assert cost.prefill_seconds([(4, 3)]) == pytest.approx(3 + 0.5 * 18)
    assert cost.decode_seconds(2, 100) == pytest.approx(10 + 4 + 10)
    assert cost.decode_seconds(2, 100, 3) == pytest.approx(sum(cost.decode_seconds(2, n) for n in (100, 102, 104)))
    assert CostModel.zero().decode_seconds(5, 10**6, 100) == 0
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        CostModel(decode_step_seconds=-1.0)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValidationError, match="must hold a page"):
        EngineConfig(pool_tokens=1000, page_size=64, chunked_prefill_tokens=32)
    with pytest.raises(ValidationError, match="no room for a prompt"):
        EngineConfig(pool_tokens=6)
