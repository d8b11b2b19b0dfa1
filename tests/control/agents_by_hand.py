"""Agents moved by hand, for the tests of the control core: what a host would report, in a line each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from concur_batch.control.admission import Admission
from concur_batch.control.member import Beat, Event, Permit, State, Traits
from concur_batch.control.rules import Rules
from concur_batch.engine.signals import Sample


def opened(capacity: int | None = 4, pools: str = "p", **rules: Any) -> Admission:
    """An admission that grants, with one window of `capacity` places for each letter of `pools`."""
    admission = Admission(Rules(**rules), pools)
    resize(admission, capacity)
    return admission


def resize(admission: Admission, capacity: int | None, now_seconds: float = 0.0) -> list[Permit]:
    """Give every window this capacity."""
    return admission.resize(dict.fromkeys(admission.windows, capacity), now_seconds)


def arrive(
    admission: Admission, agents: Iterable[str], now_seconds: float = 0.0, tokens: int = 0, **traits: Any
) -> list[Permit]:
    """These agents ask for a place, in this order, each with `tokens` of history."""
    permits: list[Permit] = []
    for agent in agents:
        member = admission.member(agent)
        epoch = 0 if member is None else member.epoch
        permits += admission.take(Event("arrive", agent, epoch, tokens, Traits(**traits)), now_seconds)
    return permits


def obey(admission: Admission, permits: Iterable[Permit], now_seconds: float = 0.0, tokens: int = 0) -> list[Permit]:
    """Those whom `permits` refuse reach their boundaries, with `tokens` of history; what follows from it."""
    follow: list[Permit] = []
    for permit in permits:
        if not permit.allowed:
            follow += admission.take(Event("boundary", permit.agent, permit.epoch, tokens), now_seconds)
    return follow


def tell(admission: Admission, agents: Iterable[str], state: State, now_seconds: float = 0.0, tokens: int = 0) -> None:
    """A beat of these agents."""
    admission.beat([Beat(agent, state, tokens) for agent in agents], now_seconds)


def release(admission: Admission, agents: Iterable[str], now_seconds: float = 0.0) -> list[Permit]:
    """These agents end, one after the other."""
    permits: list[Permit] = []
    for agent in agents:
        permits += admission.take(Event("release", agent), now_seconds)
    return permits


def end_generation(admission: Admission, agent: str, now_seconds: float = 0.0) -> list[Permit]:
    """A generation of this agent ends, under a request cap."""
    member = admission.member(agent)
    assert member is not None
    return admission.take(Event("yield", agent, member.epoch), now_seconds)


def granted(permits: Iterable[Permit]) -> str:
    """Whom the permits let go on, in order; agents have one letter each."""
    return "".join(permit.agent for permit in permits if permit.allowed)


def refused(permits: Iterable[Permit]) -> str:
    """Whom the permits stop, in order."""
    return "".join(permit.agent for permit in permits if not permit.allowed)


def waiting(admission: Admission) -> str:
    """Who waits, in order of arrival."""
    states = (State.PENDING, State.PAUSED, State.QUEUED)
    return "".join(agent for agent, member in admission.members() if member.state in states)


def congested() -> Sample:
    """A period in which the law cuts."""
    return Sample(usage=0.9, hit_rate=0.05)


def underused() -> Sample:
    """A period in which the law grows."""
    return Sample(usage=0.05, hit_rate=0.9)
