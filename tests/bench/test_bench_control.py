"""What `make bench-control` counts, on small loads: the crowd in the core, queue lengths, running requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.bench.composition import Composition, composition, simulated_batches
from concur_batch.bench.crowd import ORDERS, Clock, Order, drive
from concur_batch.bench.metered import HostAccount, MeteredController
from concur_batch.bench.round_trip import queue_length
from concur_batch.control.controller import ControllerConfig
from concur_batch.control.member import Beat, Event, State
from concur_batch.engine.pools import PoolAddress
from concur_batch.workload.schema import AgentCap


def ticking() -> Clock:
    """A clock that goes on by one second each time it is read."""
    ticks: Iterator[int] = itertools.count()
    return lambda: float(next(ticks))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_a_crowd_is_cut_resumes_and_finishes_under_every_order(order: Order) -> None:
    account = drive(200, 10, 20, order, ticking())
    assert account.turns == 2000
    assert account.events["arrive"] == account.events["release"] == 200
    assert account.events["boundary"] > 0  # cuts have paused some
    assert account.most_active == 20
    assert account.take_seconds == [1.0] * account.events.total()
    assert set(account.period_seconds) == {1.0}
    # Everybody's first place, and for each pause the refusal and the place after it.
    assert account.decisions >= 200 + 2 * account.events["boundary"]


@given(st.integers(1, 40), st.integers(1, 25), st.integers(1, 12), st.sampled_from(ORDERS))
def test_any_crowd_takes_all_its_turns_within_its_window(agents: int, turns: int, window: int, order: Order) -> None:
    account = drive(agents, turns, window, order, ticking())
    assert account.turns == agents * turns
    assert account.events["arrive"] == account.events["release"] == agents
    assert account.most_active <= window
    assert set(account.events) <= {"arrive", "release", "boundary"}


def test_agents_that_hold_a_place_ask_nothing_under_a_window_that_never_binds() -> None:
    # Under ten rounds there is no cut.
    assert drive(30, 9, 30, ORDERS[0], ticking()).events == {"arrive": 30, "release": 30}


def test_the_controller_counts_calls_and_events_also_of_hosts_it_does_not_know() -> None:
    pool = PoolAddress("0", "http://nowhere", None, None, 1, 1000)
    config = ControllerConfig("run", 0.0, (pool,), AgentCap(policy="agent_cap", cap=4), 2, 1)
    controller = MeteredController(config, object())

    async def talk() -> dict[str, float]:
        await controller.report("host0", [Event("arrive", "a"), Event("arrive", "b")])
        await controller.report("host0", [Event("release", "a")])
        await controller.beat("host0", [Beat("b", State.ACTIVE, 10)], {})
        return await controller.meter()

    counts = asyncio.run(talk())
    assert {name: counts[name] for name in ("reports", "arrive", "release", "beats", "beaten")} == {
        "reports": 2, "arrive": 2, "release": 1, "beats": 1, "beaten": 1,
    }  # fmt: skip
    assert "boundary" not in counts


def test_queue_lengths_of_hosts_add_up_by_quarters_of_a_second() -> None:
    first = HostAccount(samples=[(9.9, 99, 99), (10.0, 7, 2), (10.1, 5, 3), (10.3, 1, 0)])
    second = HostAccount(samples=[(10.2, 10, 20), (10.6, 4, 0)])
    assert queue_length([first, second], 10.0) == [(0.0, 17, 23), (0.25, 1, 0), (0.5, 4, 0)]


def row(running: int | None, pending: int = 0, finished: int = 0) -> Mapping[str, Any]:
    return {"running_requests": running, "pending": pending, "finished": finished}


def test_running_requests_count_while_every_agent_is_alive_only() -> None:
    rows = [row(50, pending=3), row(10), row(None), row(20), row(60), row(90, finished=1)]
    assert composition(rows) == Composition(periods=3, mean=30.0, p95=56.0)


def test_a_record_without_such_a_period_is_refused() -> None:
    with pytest.raises(ValueError, match="every agent was alive"):
        composition([row(50, pending=1), row(None), row(9, finished=1)])


def test_simulated_batches_are_the_same_with_a_window_that_never_binds() -> None:
    assert simulated_batches(agents=24, turns=4) == (96, True)
