"""The engine's account of its hits against the requests' own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.engine.drift import LEAST_TOKENS, WINDOW_LAGS, Drift, DriftMeter
from concur_batch.engine.signals import Sample

LAG_PERIODS = 5
FULL = (WINDOW_LAGS + 1) * LAG_PERIODS


def counted(lookups: int, hits: int) -> Sample:
    return Sample(lookup_tokens=lookups, device_hit_tokens=hits)


def steady(engine: tuple[int, int], requests: tuple[int, int], periods: int = FULL) -> DriftMeter:
    meter = DriftMeter()
    for _ in range(periods):
        meter.add(counted(*engine), *requests, LAG_PERIODS)
    return meter


def drift(meter: DriftMeter) -> Drift:
    found = meter.drift()
    assert found is not None
    return found


# A request: prompt tokens, share of it that hits, period of its prefill, periods to its completion.
request = st.tuples(st.integers(1, 5_000), st.floats(0, 1), st.integers(0, 2 * FULL), st.integers(0, LAG_PERIODS))
silent = st.sets(st.integers(0, 2 * FULL + LAG_PERIODS))


@given(st.lists(request, max_size=60), silent)
def test_equal_accounts_never_drift_whatever_the_lag_and_the_silence(
    requests: list[tuple[int, float, int, int]], silent: set[int]
) -> None:
    periods = 2 * FULL + LAG_PERIODS + 1
    engine, own = [[0, 0] for _ in range(periods)], [[0, 0] for _ in range(periods)]
    for tokens, share, begun, lag in requests:
        for account, period in ((engine, begun), (own, begun + lag)):
            account[period][0] += tokens
            account[period][1] += int(tokens * share)
    meter = DriftMeter()
    lookups = hits = 0
    for period in range(periods):
        lookups, hits = lookups + engine[period][0], hits + engine[period][1]
        if period in silent:
            meter.add(Sample(stale=True, answered=False), *own[period], LAG_PERIODS)
        else:
            meter.add(counted(lookups, hits), *own[period], LAG_PERIODS)
            lookups = hits = 0
        found = meter.drift()
        if found is not None:
            assert found.hit_rate_difference == pytest.approx(0)
            assert found.load_ratio == 1
            assert found.note == ""


def test_host_hits_counted_as_device_hits_are_found() -> None:
    """The engine says 0.82, of which the requests say that 0.5 came from the host."""
    found = drift(steady((1000, 820), (1000, 320)))
    # At least 25 of 30 periods are surely the same: (25 x 820) / (25 x 1000 + 10 x 180) - 0.32
    assert found.hit_rate_difference == pytest.approx(20_500 / 26_800 - 0.32)
    assert found.hit_rate_drifts
    assert not found.foreign_load
    assert "+0.44" in found.note


def test_a_counter_of_too_few_hits_is_found() -> None:
    found = drift(steady((1000, 100), (1000, 900)))
    assert found.hit_rate_difference < -0.1
    assert found.hit_rate_drifts


def test_another_client_is_found_and_explains_the_hit_rate() -> None:
    found = drift(steady((2000, 1000), (1000, 900)))
    assert found.load_ratio == pytest.approx(2000 * 25 / 30_000)
    assert found.foreign_load
    assert "other clients" in found.note


@given(st.integers(200, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_a_steady_difference_is_found_where_it_is_clear_and_never_overstated(
    tokens: int, engine: float, requests: float
) -> None:
    hits, own = int(tokens * engine), int(tokens * requests)
    found = drift(steady((tokens, hits), (tokens, own)))
    true = (hits - own) / tokens
    assert found.hit_rate_difference * true >= 0
    assert abs(found.hit_rate_difference) <= abs(true) + 1e-9
    assert found.load_ratio == 1
    if abs(true) > 0.3:
        assert found.hit_rate_drifts


@given(st.floats(1.5, 100))
def test_a_load_half_as_large_again_is_always_found(times: float) -> None:
    found = drift(steady((int(1000 * times), 500), (1000, 500)))
    assert found.foreign_load
    assert found.load_ratio <= times


def test_a_window_that_is_not_full_or_holds_too_little_says_nothing() -> None:
    assert steady((1000, 820), (1000, 320), FULL - 1).drift() is None
    few = LEAST_TOKENS // FULL - 1
    assert steady((1000, 0), (few, 0)).drift() is None
    assert steady((few, 0), (1000, 0)).drift() is None


def test_a_restart_begins_anew() -> None:
    meter = steady((1000, 820), (1000, 320))
    meter.add(Sample(stale=True, restarted=True), 1000, 0, LAG_PERIODS)
    assert meter.drift() is None
    for _ in range(FULL):
        meter.add(counted(1000, 320), 1000, 320, LAG_PERIODS)
    assert drift(meter).hit_rate_difference == 0


def test_the_first_sample_which_has_no_difference_holds_nothing() -> None:
    meter = DriftMeter()
    meter.add(Sample(), 10**9, 0, LAG_PERIODS)  # completed now, counted before the first reading
    for _ in range(FULL):
        meter.add(counted(1000, 500), 1000, 500, LAG_PERIODS)
    assert drift(meter) == Drift(0.0, 1.0)


@given(st.integers(6, 40), st.integers(0, 40))
def test_a_lag_that_grows_in_the_run_explains_what_it_causes(lag: int, begins: int) -> None:
    """A hit rate that collapses at once, seen by the requests a lag later, which is known while they are under way."""
    meter = DriftMeter()
    hits = [900] * (FULL + begins) + [0] * (20 * lag)
    for period in range(len(hits)):
        longest = 1 if period < FULL else min(lag, period - FULL + 1)
        before = hits[period - longest] if period >= longest else 900
        meter.add(counted(1000, hits[period]), 1000, before, longest)
        found = meter.drift()
        assert found is None or found.note == ""
