"""The host tier, by worked example: what goes there and comes back, when, and what that takes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from concur_batch.bench.batch import simulate_batch
from concur_batch.bench.plan import EnginePlan, Plan, Turn
from concur_batch.simulator.config import EngineConfig, HiCacheConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.engine import EngineCore
from concur_batch.simulator.request import Completion, Request
from concur_batch.workload.schema import NoControl

WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
INFINITY = float("inf")


def make_core(
    pool: int = 100, host: int = 1000, policy: WritePolicy = "write_through", load: float = 0.0, store: float = 0.0
) -> EngineCore:
    """A second a computed token; decoding takes no time."""
    config = EngineConfig(pool_tokens=pool, context_tokens=1000, hicache=HiCacheConfig(host, policy))
    cost = CostModel(1.0, 0.0, 0.0, 0.0, 0.0, load_seconds_per_token=load, store_seconds_per_token=store)
    return EngineCore(config, cost)


def ask(core: EngineCore, prompt: list[int], wait_seconds: float = 1000.0) -> Completion:
    """Hand in a prompt for one output token and run to its end, and `wait_seconds` beyond it."""
    core.submit(Request("r", np.array(prompt, dtype=np.int32), np.array([9], dtype=np.int32), 1), core.now_seconds)
    (done,) = core.advance(INFINITY)
    core.advance(core.now_seconds + wait_seconds)
    core.check_integrity()
    return done


def test_what_the_device_evicts_comes_back_from_the_host() -> None:
    core = make_core()
    ask(core, [1] * 60)
    ask(core, [2] * 60)
    counters = core.counters()
    assert (counters.offloaded, counters.host_used, counters.evicted, counters.host_dropped) == (120, 120, 60, 0)
    back = ask(core, [1] * 60 + [5] * 4)
    assert (back.cached_tokens, back.host_cached_tokens) == (0, 60)
    counters = core.counters()
    assert (counters.reloaded, counters.prefill_host_hit, counters.prefill_device_hit) == (60, 60, 0)
    assert counters.prefill_input == 60 + 60 + 4
    assert counters.prefill_input + counters.prefill_host_hit == 60 + 60 + 64
    assert counters.kv_used + counters.kv_evictable + counters.kv_available == counters.max_total


def test_a_little_is_computed_again_and_not_loaded() -> None:
    for tokens, loaded in ((9, 0), (10, 10)):
        core = make_core()
        ask(core, [1] * tokens)
        ask(core, [2] * 93)
        assert ask(core, [1] * tokens + [5]).host_cached_tokens == loaded
        assert core.counters().reloaded == loaded


@pytest.mark.parametrize(("load", "seconds"), [(0.01, 20.0), (0.5, 30.0)])
def test_loading_and_computing_hide_each_other(load: float, seconds: float) -> None:
    """60 tokens loaded beside 20 computed ones: the longer of 0.6 s or 30 s and of 20 s."""
    core = make_core(load=load)
    ask(core, [1] * 60)
    ask(core, [2] * 60)
    back = ask(core, [1] * 60 + [5] * 20)
    assert back.end_seconds - back.arrival_seconds == pytest.approx(seconds)
    counters = core.counters()
    assert counters.reload_seconds == pytest.approx(60 * load)
    assert counters.reload_wait_seconds == pytest.approx(seconds - 20)
    assert counters.prefill_seconds == pytest.approx(60 + 60 + seconds)


def test_a_load_waits_behind_the_stores_on_the_link() -> None:
    """The second prompt's 60 tokens are on their way to the host for 6 s when the first comes back at once."""
    core = make_core(pool=200, load=0.1, store=0.1)
    ask(core, [1] * 60)
    ask(core, [3] * 100)
    ask(core, [2] * 60, wait_seconds=0.0)
    back = ask(core, [1] * 60 + [5] * 2)
    assert back.host_cached_tokens == 60
    assert back.end_seconds - back.arrival_seconds == pytest.approx(6.0 + 6.0)


def test_what_is_on_its_way_to_the_host_cannot_be_evicted() -> None:
    """It needs room for 60 tokens, 40 are free: it waits for the store of the first, 60 tokens at 1 s each."""
    core = make_core(store=1.0)
    first = ask(core, [1] * 60, wait_seconds=0.0)
    assert (core.counters().kv_used, core.counters().kv_evictable) == (60, 0)
    assert core.next_event_seconds() is None
    second = ask(core, [2] * 60)
    assert second.scheduled_seconds == pytest.approx(first.end_seconds + 60.0)
    assert core.counters().kv_used == 0


def test_the_selective_policy_copies_what_is_used_again() -> None:
    core = make_core(policy="write_through_selective")
    ask(core, [1] * 40)
    assert core.counters().offloaded == 0
    ask(core, [1] * 40 + [2] * 10)  # the last token of the first prompt is computed again, as always
    assert core.counters().offloaded == 40
    ask(core, [3] * 93)
    counters = core.counters()
    assert (counters.evicted, counters.host_dropped, counters.host_used) == (50, 10, 40)
    assert ask(core, [1] * 40 + [2] * 10).host_cached_tokens == 40


def test_write_back_copies_what_is_evicted_and_waits_for_it() -> None:
    core = make_core(policy="write_back", store=0.5)
    first = ask(core, [1] * 60)
    assert (core.counters().offloaded, first.end_seconds) == (0, 60.0)
    second = ask(core, [2] * 60)
    assert second.end_seconds - second.arrival_seconds == pytest.approx(60.0 + 60 * 0.5)
    counters = core.counters()
    assert (counters.offloaded, counters.evicted, counters.write_back_seconds) == (60, 60, pytest.approx(30.0))
    assert ask(core, [1] * 60 + [5]).host_cached_tokens == 60


def test_a_full_host_gives_up_what_was_used_least_recently() -> None:
    core = make_core(host=130)
    for token in (1, 2, 3):
        ask(core, [token] * 60)
    counters = core.counters()
    assert (counters.offloaded, counters.host_evicted, counters.host_used) == (180, 60, 120)
    assert ask(core, [2] * 60 + [5]).host_cached_tokens == 60
    assert ask(core, [1] * 60 + [5]).host_cached_tokens == 0


def test_what_the_host_has_no_room_for_is_lost() -> None:
    core = make_core(host=50)
    ask(core, [1] * 60)
    ask(core, [2] * 60)
    counters = core.counters()
    assert (counters.offloaded, counters.evicted, counters.host_dropped) == (0, 60, 60)
    assert ask(core, [1] * 60 + [5]).host_cached_tokens == 0


def test_a_flush_empties_both_tiers() -> None:
    core = make_core()
    ask(core, [1] * 60)
    ask(core, [2] * 60)
    assert core.flush_cache()
    core.check_integrity()
    assert (core.counters().host_used, core.counters().kv_available) == (0, 100)
    assert ask(core, [1] * 60).host_cached_tokens == 0


def test_agents_beyond_the_pool_reload_instead_of_computing_again() -> None:
    """The same batch without and with a host that holds all: same work, next to nothing computed twice."""
    plans = [Plan(f"a{number}", (Turn(200, 20, 5.0),) * 4) for number in range(12)]
    totals = {}
    for hicache in (None, HiCacheConfig(20_000)):
        config = EngineConfig(pool_tokens=2000, context_tokens=2000, hicache=hicache)
        result = simulate_batch(plans, NoControl(policy="none"), {"0": EnginePlan(config)})
        totals[hicache] = {
            name: sum(row[name] for row in result.agents)
            for name in ("input_tokens", "cached_device_tokens", "cached_host_tokens", "recomputed_tokens")
        }
        assert result.counters["0"].reloaded == totals[hicache]["cached_host_tokens"]
    # The rows tell of it too, but for what came after the last reading.
    assert 0 < sum(row["host_hit_tokens"] or 0 for row in result.control) <= result.counters["0"].prefill_host_hit
    assert 0 < sum(row["reloaded_tokens"] or 0 for row in result.control) <= result.counters["0"].reloaded
    assert 0 < sum(row["offloaded_tokens"] or 0 for row in result.control) <= result.counters["0"].offloaded
    without, with_host = totals.values()
    assert without["input_tokens"] == with_host["input_tokens"]
    assert without["cached_host_tokens"] == 0 < with_host["cached_host_tokens"]
    assert without["recomputed_tokens"] > 5000 > 100 > with_host["recomputed_tokens"]
