"""The host's link to a controller that is there, restarts, or does not know the host."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RayError

from concur_batch.agent.claim import Wish
from concur_batch.agent.link import Link
from concur_batch.control.member import NO_TRAITS, Beat, Event, Permit, Spent, State
from concur_batch.control.rules import Rules


class FakeController:
    """Keeps what it is told; `broken` calls fail as those of an actor that restarts."""

    def __init__(self) -> None:
        self.broken = 0
        self.known = True
        self.events: list[Event] = []
        self.beats: list[tuple[list[Beat], Mapping[str, Spent]]] = []
        self.censuses: list[list[str]] = []
        for name in ("report", "beat", "incarnation", "introduce"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}")))

    async def _report(self, host: str, events: list[Event]) -> bool:
        self.events += events
        return self.known

    async def _beat(self, host: str, beats: list[Beat], spent: Mapping[str, Spent]) -> bool:
        if self.broken:
            self.broken -= 1
            raise ActorUnavailableError("restarts", None)
        self.beats.append((beats, spent))
        return self.known

    async def _incarnation(self) -> int:
        return 7

    async def _introduce(self, host: str, handle: Any, census: list[Any], incarnation: int) -> None:
        assert (host, incarnation) == ("h", 7)
        self.known = True
        self.censuses.append([entry.agent for entry in census])


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The gate's clock, as a test moves it."""
    moment = SimpleNamespace(seconds=100.0)
    clock = SimpleNamespace(monotonic=lambda: moment.seconds)
    monkeypatch.setattr("concur_batch.agent.gate.time", clock)
    monkeypatch.setattr("concur_batch.agent.link._this_actor", lambda: None)
    return moment


async def linked(controller: FakeController) -> Link:
    link = Link("h", controller, Rules())
    await link.introduce()
    return link


async def entered(link: Link, agent: str, pool: str = "p") -> None:
    """The agent is at its first generation."""
    waiting = asyncio.create_task(link.gate.enter(agent, Wish(50, 50), NO_TRAITS))
    await asyncio.sleep(0)
    link.permit(7, [Permit(agent, 1, True, pool)])
    await waiting


async def test_what_a_failing_call_could_not_tell_comes_with_the_next(now: SimpleNamespace) -> None:
    controller = FakeController()
    link = await linked(controller)
    await entered(link, "a")
    link.gate.generated("a", 60)
    link.spend("p", Spent(50, 20, 5, longest_seconds=3.0))
    controller.broken = 2
    for _ in range(2):
        with pytest.raises(RayError):
            await link.beat()
    await entered(link, "b", "q")
    link.spend("p", Spent(10, 1, 0, longest_seconds=2.0))
    now.seconds += 4.0
    await link.beat()
    assert controller.beats == [
        (
            [Beat("a", State.TOOL_WAIT, 60), Beat("b", State.ACTIVE, 50)],
            {"p": Spent(60, 21, 5, 3.0), "q": Spent(longest_seconds=4.0)},
        )
    ]
    await link.beat()
    assert controller.beats[1] == ([], {"q": Spent(longest_seconds=4.0)})
    await link.close()


async def test_an_agent_that_left_meanwhile_is_not_told_of(now: SimpleNamespace) -> None:
    controller = FakeController()
    link = await linked(controller)
    await entered(link, "a")
    controller.broken = 1
    with pytest.raises(RayError):
        await link.beat()
    link.gate.leave("a")
    await link.beat()
    assert controller.beats == [([], {})]
    await link.close()


async def test_the_longest_seconds_are_of_ended_generations_or_of_one_under_way(now: SimpleNamespace) -> None:
    controller = FakeController()
    link = await linked(controller)
    await entered(link, "a")
    now.seconds += 9.0
    link.spend("p", Spent(1, 1, 1, longest_seconds=5.0))
    await link.beat()
    link.spend("p", Spent(1, 1, 1, longest_seconds=50.0))
    await link.beat()
    assert [spent["p"].longest_seconds for _, spent in controller.beats] == [9.0, 50.0]
    await link.close()


async def test_a_controller_that_does_not_know_the_host_gets_a_census_and_counts_nothing_twice(
    now: SimpleNamespace,
) -> None:
    controller = FakeController()
    link = await linked(controller)
    await entered(link, "a")
    link.spend("p", Spent(50, 20, 5))
    controller.known = False
    await link.beat()
    assert controller.censuses == [[], ["a"]]
    await link.beat()
    assert [spent.get("p", Spent()).input_tokens for _, spent in controller.beats] == [50, 0]
    controller.known = False
    await entered(link, "b")
    await link.sent()
    assert controller.censuses[2:] == [["a", "b"]]
    assert link.unacknowledged == 0
    await link.close()


async def test_permits_of_a_controller_that_has_died_since_are_void(now: SimpleNamespace) -> None:
    controller = FakeController()
    link = await linked(controller)
    await entered(link, "a")
    link.permit(6, [Permit("a", 2, False, "p")])
    assert link.gate.census()[0].epoch == 1
    link.permit(7, [Permit("a", 2, False, "p")])
    assert link.gate.census()[0].epoch == 2
    await link.close()
