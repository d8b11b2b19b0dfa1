"""Phases by occupancy and hit rate, never by turn counts."""

from concur_batch.report.phases import Phase, PhaseTracker


def phases(*periods: tuple[float | None, float | None, int]) -> list[Phase]:
    tracker = PhaseTracker()
    return [tracker.step(*period) for period in periods]


def test_an_uncontrolled_batch_warms_up_thrashes_and_recovers() -> None:
    seen = phases(
        (0.3, 0.9, 0), (0.7, 0.9, 0),
        *[(0.95, 0.1, 0)] * 8,
        *[(0.99, 0.95, 0)] * 5,
    )  # fmt: skip
    assert seen[:2] == [Phase.WARMUP] * 2
    assert seen[2:10] == [Phase.MIDDLE] * 8
    assert seen[-1] is Phase.COOLDOWN


def test_a_controlled_batch_stays_in_the_middle_while_agents_wait_though_it_hits() -> None:
    seen = phases(*[(0.9, 0.9, 20)] * 10, *[(0.9, 0.9, 0)] * 2)
    assert seen[:10] == [Phase.MIDDLE] * 10
    assert seen[-1] is Phase.COOLDOWN


def test_one_good_period_is_no_recovery() -> None:
    assert phases(*[(0.9, 0.1, 0)] * 6, (0.9, 1.0, 0))[-1] is Phase.MIDDLE


def test_thrashing_that_returns_is_the_middle_again() -> None:
    seen = phases(*[(0.9, 0.1, 0)] * 5, *[(0.9, 0.9, 0)] * 6, *[(0.9, 0.1, 0)] * 5)
    assert Phase.COOLDOWN in seen
    assert seen[-1] is Phase.MIDDLE


def test_a_pool_that_empties_cools_down() -> None:
    assert phases((0.9, 0.2, 0), (0.5, None, 0))[-1] is Phase.COOLDOWN


def test_an_engine_that_tells_no_occupancy_stays_in_warmup() -> None:
    assert phases(*[(None, 0.1, 3)] * 4) == [Phase.WARMUP] * 4
