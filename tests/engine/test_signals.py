"""From readings to samples: differences, staleness, restarts, idleness, smoothing."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.engine.protocol import Reading
from concur_batch.engine.signals import Sample, Sampler, Smoothing

COUNTERS = [field.name for field in fields(Reading) if field.name.endswith("_total")]


def reading(at: float, stamp: float | None = None, **told: Any) -> Reading:
    base = {"pool_tokens": 1000, "locked_tokens": 0, "evictable_tokens": 0}
    return Reading(at_seconds=at, stamp_seconds=at if stamp is None else stamp, **{**base, **told})


def counters(missed: int, device: int, host: int = 0) -> dict[str, int]:
    return {"input_tokens_total": missed, "device_hit_tokens_total": device, "host_hit_tokens_total": host}


def test_usage_is_locked_over_pool_and_occupancy_counts_the_evictable_too() -> None:
    sample = Sampler().sample([reading(1, locked_tokens=250, evictable_tokens=600)], 1)
    assert (sample.usage, sample.occupancy) == (0.25, 0.85)
    assert sample.hit_rate is None  # one reading has no difference
    assert (sample.stale, sample.restarted, sample.answered, sample.note) == (False, False, True, "")


def test_a_sample_holds_the_gauges_of_the_last_reading() -> None:
    gauges = {"locked_tokens": 3, "evictable_tokens": 4, "running_requests": 5, "waiting_requests": 6}
    sample = Sampler().sample([reading(1), reading(2, **gauges)], 2)
    assert sample.pool_tokens == 1000
    assert {name: getattr(sample, name) for name in gauges} == gauges


def test_hit_rate_is_device_hits_over_look_ups_of_the_period_alone() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, **counters(1000, 9000))], 1)
    sample = sampler.sample([reading(2, **counters(1060, 9030, 10))], 2)
    assert sample.hit_rate == 0.3  # 30 of 100; the 10 host hits count as looked up, not as hit
    assert (sample.lookup_tokens, sample.device_hit_tokens, sample.host_hit_tokens) == (100, 30, 10)


def test_a_period_without_look_ups_leaves_the_hit_rate_undefined() -> None:
    sampler = Sampler("ewma")
    sampler.sample([reading(1, **counters(10, 10))], 1)
    assert sampler.sample([reading(2, **counters(20, 20))], 2).hit_rate == 0.5
    sample = sampler.sample([reading(3, **counters(20, 20))], 3)
    assert sample.hit_rate is None  # nothing says that the cache thrashes, whatever the average was
    assert (sample.lookup_tokens, sample.usage, sample.stale) == (0, 0.0, False)  # idle is fresh, with U = 0


def test_an_unmoved_stamp_is_stale_and_its_age_grows() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, stamp=77)], 1)
    sample = sampler.sample([reading(4, stamp=77)], 4)
    assert (sample.stale, sample.answered, sample.age_seconds) == (True, True, 3)
    assert "not been refreshed" in sample.note
    fresh = sampler.sample([reading(5, stamp=78)], 5)
    assert (fresh.stale, fresh.age_seconds) == (False, 0)


def test_a_stamp_is_remembered_over_a_reading_without_one() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, stamp=77)], 1)
    bare = sampler.sample([replace(reading(2), stamp_seconds=None)], 2)
    assert (bare.stale, bare.note) == (
        False,
        "the engine stamps no time on its gauges: whether they are fresh is not known",
    )
    assert sampler.sample([reading(3, stamp=77)], 3).stale


def test_no_answer_is_stale() -> None:
    sampler = Sampler()
    assert sampler.sample([], 0).age_seconds == 0
    assert sampler.sample([], 2).age_seconds == 2  # since it was first asked
    sampler.sample([reading(3)], 3)
    sample = sampler.sample([], 5)
    assert (sample.stale, sample.answered, sample.usage, sample.age_seconds) == (True, False, None, 2)


def test_a_counter_that_went_back_is_a_restart() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, **counters(1000, 9000))], 1)
    sample = sampler.sample([reading(2, **counters(5, 3))], 2)
    assert (sample.stale, sample.restarted) == (True, True)
    assert "restarted" in sample.note
    assert (sample.hit_rate, sample.lookup_tokens) == (None, None)
    after = sampler.sample([reading(3, **counters(10, 8))], 3)
    assert (after.hit_rate, after.restarted) == (0.5, False)


def test_a_pool_of_another_size_is_a_restart_and_usage_is_of_the_new_one() -> None:
    """Its counters may already be beyond the old ones', after a long silence."""
    sampler = Sampler("mean")
    sampler.sample([reading(1, locked_tokens=500, **counters(10, 10))], 1)
    sampler.sample([], 2)
    old, new = reading(3, locked_tokens=500), reading(4, pool_tokens=2000, locked_tokens=500, **counters(90, 90))
    sample = sampler.sample([old, new], 4)
    assert (sample.restarted, sample.stale, sample.usage, sample.lookup_tokens) == (True, True, 0.25, None)
    after = sampler.sample([reading(5, pool_tokens=2000, locked_tokens=1000, **counters(95, 105))], 5)
    assert (after.restarted, after.usage, after.hit_rate) == (False, 0.5, 0.75)


def test_a_counter_that_was_not_told_for_a_while_spans_it() -> None:
    sampler = Sampler()
    assert sampler.sample([reading(1, evicted_tokens_total=30)], 1).evicted_tokens is None
    assert sampler.sample([reading(2)], 2).evicted_tokens is None
    assert sampler.sample([reading(3, evicted_tokens_total=40)], 3).evicted_tokens == 10
    assert sampler.sample([reading(4, evicted_tokens_total=45)], 4).evicted_tokens == 5


def test_a_period_after_a_missing_one_spans_both() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, **counters(0, 0))], 1)
    sampler.sample([], 2)
    sample = sampler.sample([reading(3, **counters(50, 150))], 3)
    assert (sample.lookup_tokens, sample.hit_rate, sample.stale) == (200, 0.75, False)


@pytest.mark.parametrize(("smoothing", "usage"), [("none", 0.3), ("mean", 0.2), ("ewma", 0.3)])
def test_the_readings_of_a_period(smoothing: Smoothing, usage: float) -> None:
    sample = Sampler(smoothing).sample([reading(1, locked_tokens=100), reading(2, locked_tokens=300)], 2)
    assert sample.usage == pytest.approx(usage)
    assert sample.raw_usage == 0.3


def test_the_weighted_average_by_hand() -> None:
    sampler = Sampler("ewma", 0.25)
    assert sampler.sample([reading(1, locked_tokens=400, **counters(0, 0))], 1).usage == 0.4
    second = sampler.sample([reading(2, locked_tokens=800, **counters(100, 0))], 2)
    assert second.usage == pytest.approx(0.75 * 0.4 + 0.25 * 0.8)
    assert (second.raw_usage, second.hit_rate, second.raw_hit_rate) == (0.8, 0.0, 0.0)
    third = sampler.sample([reading(3, locked_tokens=800, **counters(100, 100))], 3)
    assert (third.hit_rate, third.raw_hit_rate) == (0.25, 1.0)
    stale = sampler.sample([reading(4, stamp=3, locked_tokens=0, **counters(200, 100))], 4)
    assert (stale.usage, stale.raw_usage) == (third.usage, 0.0)
    assert sampler.sample([], 5).usage is None
    fresh = sampler.sample([reading(6, locked_tokens=800, **counters(200, 200))], 6)
    assert fresh.usage == pytest.approx(0.75 * (third.usage or 0) + 0.25 * 0.8)  # as though nothing had been between
    restarted = sampler.sample([reading(7, locked_tokens=100, **counters(0, 0))], 7)
    assert (restarted.usage, restarted.stale) == (0.1, True)
    assert sampler.sample([reading(8, locked_tokens=700, **counters(1, 0))], 8).usage == 0.7  # begun anew


Step = tuple[list[int], int, bool, bool]  # see `steps`
steps = st.lists(
    st.tuples(
        st.lists(st.integers(0, 500), min_size=len(COUNTERS), max_size=len(COUNTERS)),
        st.integers(0, 1000),  # locked tokens
        st.booleans(),  # whether the engine answers
        st.booleans(),  # whether it refreshes its stamp
    ),
    max_size=12,
)


def run(steps: list[Step], sampler: Sampler) -> tuple[list[Sample], list[Reading]]:
    """A sample a step, and the readings that were had; the first one always."""
    totals, stamp = dict.fromkeys(COUNTERS, 0), 0
    first = reading(0, stamp=0, **totals)
    samples, told = [sampler.sample([first], 0)], [first]
    for number, (moved, locked, answers, refreshes) in enumerate(steps, 1):
        totals = {name: totals[name] + more for name, more in zip(COUNTERS, moved, strict=True)}
        stamp += refreshes
        now = reading(number, stamp=stamp, locked_tokens=locked, **totals)
        samples.append(sampler.sample([now] if answers else [], number))
        told += [now] if answers else []
    return samples, told


@given(steps)
def test_differences_add_up_to_the_counters_whatever_was_missed(steps: list[Step]) -> None:
    samples, told = run(steps, Sampler())
    assert not any(sample.restarted for sample in samples)
    for name in set(COUNTERS) - {"input_tokens_total"}:
        seen = sum(getattr(sample, name.removesuffix("_total")) or 0 for sample in samples)
        assert seen == getattr(told[-1], name) - getattr(told[0], name)
    lookups = sum(sample.lookup_tokens or 0 for sample in samples)
    tiers = ("input_tokens_total", "device_hit_tokens_total", "host_hit_tokens_total", "storage_hit_tokens_total")
    assert lookups == sum(getattr(told[-1], name) - getattr(told[0], name) for name in tiers)


@given(steps, st.sampled_from(["none", "mean", "ewma"]), st.floats(0.01, 1))
def test_a_sample_is_stale_just_where_nothing_new_was_told(
    steps: list[Step], smoothing: Smoothing, weight: float
) -> None:
    samples, _ = run(steps, Sampler(smoothing, weight))
    refreshed = False
    for (_, _, answers, refreshes), sample in zip(steps, samples[1:], strict=True):
        refreshed = refreshed or refreshes
        assert sample.answered == answers
        assert sample.stale == (not (answers and refreshed))
        assert bool(sample.note) == sample.stale
        refreshed = refreshed and not answers
        assert (sample.usage is None) == (not answers)
        assert (sample.hit_rate is None) == (not sample.lookup_tokens)
        for value in (sample.usage, sample.hit_rate, sample.raw_usage, sample.raw_hit_rate):
            assert value is None or 0 <= value <= 1


@given(steps, st.floats(0.01, 1))
def test_the_average_of_fresh_periods_is_that_of_a_run_without_the_stale_ones(steps: list[Step], weight: float) -> None:
    samples, _ = run(steps, Sampler("ewma", weight))
    average: dict[str, float] = {}
    for sample in samples:
        for name in ("usage", "hit_rate"):
            raw, smoothed = getattr(sample, f"raw_{name}"), getattr(sample, name)
            if raw is None:
                assert smoothed is None
            elif sample.stale:
                assert smoothed == pytest.approx(average.get(name, raw), abs=1e-12)
            else:
                average[name] = raw if name not in average else (1 - weight) * average[name] + weight * raw
                assert smoothed == pytest.approx(average[name], abs=1e-12)


@given(steps, steps)
def test_a_restart_is_found_and_what_comes_after_is_exact(before: list[Step], after: list[Step]) -> None:
    sampler = Sampler()
    _, old = run(before, sampler)
    samples, told = run(after, sampler)
    grew = any(getattr(old[-1], name) > 0 for name in COUNTERS)
    assert samples[0].restarted == grew
    assert not any(sample.restarted for sample in samples[1:])
    seen = sum(sample.evicted_tokens or 0 for sample in samples)
    assert seen == (told[-1].evicted_tokens_total or 0)
