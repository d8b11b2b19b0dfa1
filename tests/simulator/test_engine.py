"""The engine as a whole, by property: random loads on small pools, run in one go and in small steps."""

import math
import random
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.engine import EngineCore
from concur_batch.simulator.request import Completion, Request, RequestRejected
from tests.simulator.loads import COST, INFINITY, make_load, make_request, make_tiered_load, run

loads = st.integers(0, 10**6).map(make_load) | st.integers(0, 10**6).map(make_tiered_load)


@settings(max_examples=100, deadline=None)
@given(loads)
def test_every_request_ends_and_every_token_is_accounted_for(
    load: tuple[EngineConfig, list[tuple[float, Request]]],
) -> None:
    config, arrivals = load
    core, completions = run(config, arrivals, None)
    requests = {request.rid: request for _, request in arrivals}
    assert sorted(c.rid for c in completions) == sorted(requests)
    for done in completions:
        request = requests[done.rid]
        allowed = min(request.max_new_tokens, config.max_request_tokens - len(request.input_ids) - 1)
        assert done.completion_tokens == min(len(request.output_ids), allowed)
        assert done.finish_reason == ("length" if len(request.output_ids) >= allowed else "stop")
        assert np.array_equal(done.output_ids, request.output_ids[: done.completion_tokens])
        assert done.cached_tokens >= 0 and done.host_cached_tokens >= 0
        assert done.cached_tokens + done.host_cached_tokens < done.prompt_tokens
        assert done.scheduled_seconds is not None and done.first_token_seconds is not None
        assert done.arrival_seconds <= done.scheduled_seconds <= done.first_token_seconds <= done.end_seconds
    counters = core.counters()
    assert (counters.running, counters.waiting, counters.kv_used) == (0, 0, 0)
    assert counters.kv_evictable + counters.kv_available == counters.max_total
    assert counters.prefill_device_hit == sum(c.cached_tokens for c in completions)
    assert counters.prefill_host_hit == sum(c.host_cached_tokens for c in completions)
    hits = counters.prefill_device_hit + counters.prefill_host_hit
    assert counters.prefill_input + hits == sum(c.prompt_tokens for c in completions)
    assert counters.retracted_requests == sum(c.retractions for c in completions)
    # Each attempt's prefill makes one output, decode the others.
    assert counters.decode == sum(c.completion_tokens - 1 - c.retractions for c in completions)
    if not counters.retracted_requests:
        assert counters.prefill_compute == counters.prefill_input
        assert counters.prefill_cache == hits
        assert counters.reloaded == counters.prefill_host_hit
    assert counters.host_used == counters.offloaded - counters.host_evicted
    assert counters.prefill_compute + counters.reloaded + counters.decode >= counters.kv_evictable + counters.evicted


@settings(max_examples=100, deadline=None)
@given(loads, st.sampled_from([0.07, 0.5, 3.0]))
def test_stretches_of_decode_steps_change_nothing(
    load: tuple[EngineConfig, list[tuple[float, Request]]], step: float
) -> None:
    """Run in one go, decode steps are taken together; in slices too short for that, one by one."""
    config, arrivals = load
    core, whole = run(config, arrivals, None)
    other, sliced = run(config, arrivals, step)
    assert [(c.rid, c.completion_tokens, c.cached_tokens, c.retractions, c.finish_reason) for c in whole] == [
        (c.rid, c.completion_tokens, c.cached_tokens, c.retractions, c.finish_reason) for c in sliced
    ]
    for one, two in zip(whole, sliced, strict=True):
        assert one.end_seconds == pytest.approx(two.end_seconds)
    assert asdict(core.counters()) == pytest.approx(asdict(other.counters()))


@settings(max_examples=100, deadline=None)
@given(loads)
def test_the_next_event_is_never_later_than_a_completion(
    load: tuple[EngineConfig, list[tuple[float, Request]]],
) -> None:
    """A driver that sleeps until `next_event_seconds` gets every completion on time, without polling."""
    config, arrivals = load
    _, whole = run(config, arrivals, None)
    core = EngineCore(config, COST)
    for now, request in arrivals:
        core.submit(request, now)
    got: list[Completion] = []
    wakes = 0
    while (event := core.next_event_seconds()) is not None:
        done = core.advance(event)
        assert all(math.isclose(c.end_seconds, event) for c in done)
        got += done
        wakes += 1
    assert [c.rid for c in got] == [c.rid for c in whole]
    tokens = sum(len(r.input_ids) + c.completion_tokens for (_, r), c in zip(arrivals, got, strict=True))
    assert wakes <= 5 * tokens


@settings(max_examples=100, deadline=None)
@given(loads, st.randoms(use_true_random=False))
def test_aborts_free_everything(load: tuple[EngineConfig, list[tuple[float, Request]]], rng: random.Random) -> None:
    config, arrivals = load
    core = EngineCore(config, COST)
    for now, request in arrivals:
        core.submit(request, now)
    completions: list[Completion] = []
    victims = [request.rid for _, request in arrivals if rng.random() < 0.6]
    for rid in victims:
        completions += core.advance(core.now_seconds + rng.choice([0.0, 0.05, 0.4, 2.0]))
        core.abort(rid)
        core.check_integrity()
    completions += core.advance(INFINITY)
    core.advance(core.now_seconds + 1000.0)  # what goes to the host is there
    core.check_integrity()
    assert sorted(c.rid for c in completions) == sorted(request.rid for _, request in arrivals)
    assert core.counters().kv_used == core.counters().running == core.counters().waiting == 0
    for done in completions:
        if done.rid not in victims:
            assert done.finish_reason != "abort"


def test_the_random_loads_are_hard_enough() -> None:
    """Else the properties above would hold of nothing."""
    for make, figures in (
        (make_load, {"evicted": 50, "retracted_requests": 8, "prefill_device_hit": 80}),
        (make_tiered_load, {"reloaded": 15, "host_dropped": 15, "host_evicted": 15, "retracted_requests": 2}),
    ):
        seen = dict.fromkeys(figures, 0)
        for seed in range(150):
            counters = run(*make(seed), None)[0].counters()
            for name in figures:
                seen[name] += getattr(counters, name) > 0
        assert all(seen[name] >= least for name, least in figures.items()), seen


def test_abort_matches_by_prefix_and_tells_where_it_struck() -> None:
    config = EngineConfig(pool_tokens=200, context_tokens=100, max_running_requests=1)
    core = EngineCore(config, COST)
    for rid in ("a-1", "a-2", "b-1"):
        core.submit(make_request(rid, [1, 2, 3], 20, 20), 0.0)
    assert core.advance(1.0) == []
    core.abort("a-")
    done = core.advance(INFINITY)
    assert [(c.rid, c.finish_reason, c.message) for c in done] == [
        ("a-2", "abort", "Abort in waiting queue"),
        ("a-1", "abort", "Aborted"),
        ("b-1", "length", None),
    ]
    assert done[0].completion_tokens == 0
    assert done[0].scheduled_seconds is None
    assert 0 < done[1].completion_tokens < 20


def test_what_can_never_run_is_refused_with_sglangs_words() -> None:
    core = EngineCore(EngineConfig(pool_tokens=50, context_tokens=100), CostModel.zero())

    def refusal(prompt: int, allowance: int) -> str:
        with pytest.raises(RequestRejected) as caught:
            core.submit(make_request("r", [1] * prompt, 1, allowance), 0.0)
        return str(caught.value)

    assert refusal(100, 1) == "The input (100 tokens) is longer than the model's context length (100 tokens)."
    assert refusal(90, 11).startswith("Requested token count exceeds the model's maximum context length of 100 tokens.")
    assert refusal(44, 1).startswith("Input length (44 tokens) exceeds the maximum allowed length (44 tokens).")
    assert core.advance(INFINITY) == []


def test_an_allowance_beyond_the_pool_is_cut_off() -> None:
    core = EngineCore(EngineConfig(pool_tokens=50, context_tokens=100), CostModel.zero())
    core.submit(make_request("r", [1] * 40, 60, 60), 0.0)
    (done,) = core.advance(INFINITY)
    assert (done.finish_reason, done.completion_tokens) == ("length", 8)


def test_a_zero_cost_engine_answers_at_once() -> None:
    core = EngineCore(EngineConfig(pool_tokens=10_000, context_tokens=1000), CostModel.zero())
    for index in range(20):
        core.submit(make_request(f"r{index}", [index, 2, 3], 30, 30), 7.0)
    done = core.advance(7.0)
    assert len(done) == 20
    assert {c.end_seconds for c in done} == {7.0}
    assert core.next_event_seconds() is None


def test_arrivals_must_be_in_order() -> None:
    core = EngineCore(EngineConfig(pool_tokens=1000, context_tokens=100), CostModel.zero())
    core.advance(5.0)
    with pytest.raises(ValueError, match="before 5"):
        core.submit(make_request("r", [1], 1, 1), 4.0)


def test_ten_thousands_of_decode_steps_are_cheap() -> None:
    """Counted in launched steps: a stretch per completion, whatever the lengths."""
    core = EngineCore(EngineConfig(pool_tokens=2_000_000, context_tokens=100_000), CostModel())
    launches = 0
    launch = core._scheduler.launch

    def counting(now_seconds: float, max_seconds: float):  # type: ignore[no-untyped-def]
        nonlocal launches
        launches += 1
        return launch(now_seconds, max_seconds)

    core._scheduler.launch = counting  # type: ignore[method-assign]
    for index in range(8):
        core.submit(make_request(f"r{index}", [1, index], 4_000 * (index + 1), 32_000), 0.0)
    assert len(core.advance(INFINITY)) == 8
    assert launches <= 12


def agents(count: int, config: EngineConfig, turns: int = 6, grow: int = 50) -> tuple[float, float]:
    """`count` agents, each asking again as soon as it is answered, with all its history. (hit rate, seconds a turn)"""
    core = EngineCore(config, COST)
    history = {f"agent-{index}|": [index] * grow for index in range(count)}
    left = dict.fromkeys(history, turns)
    for rid, prompt in history.items():
        core.submit(make_request(rid, prompt, 5, 5), 0.0)
    turn_count = 0
    while (event := core.next_event_seconds()) is not None:
        for done in core.advance(event):
            turn_count += 1
            left[done.rid] -= 1
            if left[done.rid]:
                history[done.rid] += [*done.output_ids.tolist(), *[turn_count] * grow]
                core.submit(make_request(done.rid, history[done.rid], 5, 5), core.now_seconds)
    counters = core.counters()
    assert turn_count == count * turns
    looked_up = counters.prefill_input + counters.prefill_device_hit
    return counters.prefill_device_hit / looked_up, core.now_seconds / turn_count


def test_agents_beyond_the_pool_thrash() -> None:
    """A pool for 12 full contexts: 8 agents keep their prefixes, 32 recompute them and take longer for each turn."""
    config = EngineConfig(pool_tokens=12 * 330, context_tokens=1000, max_running_requests=64)
    few_hits, few_seconds = agents(8, config)
    many_hits, many_seconds = agents(32, config)
    ideal_hits, _ = agents(8, replace(config, pool_tokens=100_000))
    assert few_hits == pytest.approx(ideal_hits)
    assert many_hits < 0.5 * few_hits
    assert many_seconds > few_seconds
