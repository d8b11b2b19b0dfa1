"""From readings to samples: differences, staleness, restarts, idleness."""

from concur_batch.engine.protocol import Reading
from concur_batch.engine.signals import Sampler


def reading(at: float, stamp: float | None = None, **fields: int) -> Reading:
    base = {"pool_tokens": 1000, "locked_tokens": 0, "evictable_tokens": 0}
    return Reading(at_seconds=at, stamp_seconds=at if stamp is None else stamp, **{**base, **fields})


def counters(missed: int, device: int, host: int = 0) -> dict[str, int]:
    return {"input_tokens_total": missed, "device_hit_tokens_total": device, "host_hit_tokens_total": host}


def test_usage_is_locked_over_pool_and_occupancy_counts_the_evictable_too() -> None:
    sample = Sampler().sample([reading(1, locked_tokens=250, evictable_tokens=600)], 1)
    assert (sample.usage, sample.occupancy) == (0.25, 0.85)
    assert sample.hit_rate is None  # one reading has no difference
    assert not sample.stale


def test_hit_rate_is_device_hits_over_look_ups_of_the_period_alone() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, **counters(1000, 9000))], 1)
    sample = sampler.sample([reading(2, **counters(1060, 9030, 10))], 2)
    assert sample.hit_rate == 0.3  # 30 of 100; the 10 host hits count as looked up, not as hit
    assert (sample.lookup_tokens, sample.device_hit_tokens, sample.host_hit_tokens) == (100, 30, 10)


def test_a_period_without_look_ups_leaves_the_hit_rate_undefined() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, **counters(10, 10))], 1)
    sample = sampler.sample([reading(2, **counters(10, 10))], 2)
    assert sample.hit_rate is None
    assert (sample.lookup_tokens, sample.usage, sample.stale) == (0, 0.0, False)  # idle is fresh, with U = 0


def test_an_unmoved_stamp_is_stale_and_its_age_grows() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, stamp=77)], 1)
    sample = sampler.sample([reading(4, stamp=77)], 4)
    assert sample.stale
    assert sample.age_seconds == 3


def test_no_answer_is_stale() -> None:
    sampler = Sampler()
    sampler.sample([reading(1)], 1)
    sample = sampler.sample([], 3)
    assert (sample.stale, sample.usage, sample.age_seconds) == (True, None, 2)


def test_a_counter_that_went_back_is_a_restart() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, **counters(1000, 9000))], 1)
    sample = sampler.sample([reading(2, **counters(5, 3))], 2)
    assert sample.stale
    assert "restarted" in sample.note
    assert sample.hit_rate is None
    after = sampler.sample([reading(3, **counters(10, 8))], 3)
    assert after.hit_rate == 0.5


def test_a_counter_that_was_not_told_has_no_difference() -> None:
    sampler = Sampler()
    sampler.sample([reading(1, evicted_tokens_total=30)], 1)
    sampler.sample([reading(2)], 2)
    assert sampler.sample([reading(3, evicted_tokens_total=40)], 3).evicted_tokens is None
    assert sampler.sample([reading(4, evicted_tokens_total=45)], 4).evicted_tokens == 5


def test_the_mean_of_several_readings() -> None:
    sample = Sampler().sample([reading(1, locked_tokens=100), reading(2, locked_tokens=300)], 2)
    assert sample.usage == 0.2
