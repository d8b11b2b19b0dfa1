"""What the operator orders survives the controller: a second one made of the same configuration goes on so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from concur_batch.control.controller import Controller, ControllerConfig
from concur_batch.control.gauges import Answers
from concur_batch.control.member import Membership, State
from concur_batch.control.orders import Orders, read_orders, write_orders
from concur_batch.engine.pools import PoolAddress
from concur_batch.trace.files import TraceError
from concur_batch.workload.errors import InputError
from concur_batch.workload.schema import AgentCap, AnyControl, Concur, TokenWindow

CONTROL = Concur(policy="concur")
WINDOW = TokenWindow(policy="token_window", admit_share=0.8, hold_seconds=4.0)


class Host:
    """A host of some agents, as its actor handle looks to the controller."""

    def __init__(self, *agents: str, answers: bool = True) -> None:
        self.cancelled: list[str] = []
        self.permits: list[Any] = []
        self._agents = agents
        self._answers = answers
        for name in ("agents", "cancel", "permit"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}_")))

    async def _agents_(self) -> list[dict[str, Any]]:
        if not self._answers:
            raise ConnectionError("gone")
        return [{"agent_id": agent} for agent in self._agents]

    async def _cancel_(self, agent: str) -> bool:
        if agent in self._agents:
            self.cancelled.append(agent)
        return agent in self._agents

    def _permit_(self, incarnation: int, permits: list[Any]) -> None:
        self.permits += permits


def make(orders: Path | None, hosts: int = 1, control: AnyControl = CONTROL) -> Controller:
    recorder = SimpleNamespace(commit=SimpleNamespace(remote=lambda lines: asyncio.sleep(0)))
    pools = tuple(PoolAddress(name, "http://127.0.0.1:9", None, None, 1, 2500) for name in "pq")
    return Controller(ControllerConfig("run", 0.0, pools, control, agents=16, hosts=hosts, orders=orders), recorder)


async def changes_of(controller: Controller) -> set[str | None]:
    """The `changes` of the next period's rows; ends the controller."""
    await controller.introduce("last", Host(), [], await controller.incarnation())
    controller._begin()
    controller._period([Answers({}, frozenset())])
    rows = controller._governor.last_rows.values()
    changes = {row["changes"] for row in rows}
    assert len(rows) == 2  # every pool's row tells it
    await controller.close()
    return changes


@pytest.mark.parametrize("control", [CONTROL, AgentCap(policy="agent_cap", cap=3), WINDOW])
@pytest.mark.parametrize("suspended", [True, False])
def test_orders_read_back_as_written(control: AnyControl, suspended: bool, tmp_path: Path) -> None:
    file = tmp_path / "control.json"
    assert read_orders(file) is None
    write_orders(file, Orders(control, suspended))
    assert read_orders(file) == Orders(control, suspended)
    assert [path.name for path in tmp_path.iterdir()] == ["control.json"]


async def test_a_change_takes_effect_is_on_record_once_and_survives(tmp_path: Path) -> None:
    first = make(tmp_path / "control.json")
    assert await first.set(["control.u_high=0.6", "control.alpha=5"]) == [
        "control.alpha 2 -> 5",
        "control.u_high 0.5 -> 0.6",
    ]
    assert await first.set(["control.alpha=5"]) == []
    with pytest.raises(InputError):
        await first.set(["control.alpha=6", "control.u_low=0.9"])
    assert await changes_of(first) == {"control.alpha 2 -> 5; control.u_high 0.5 -> 0.6"}
    second = make(tmp_path / "control.json")
    assert second._governor.control == Concur(policy="concur", u_high=0.6, alpha=5)
    (told,) = await changes_of(second)
    assert told == "after a restart of the controller: control.alpha 2 -> 5, control.u_high 0.5 -> 0.6"


async def test_a_window_in_tokens_is_set_the_same_way(tmp_path: Path) -> None:
    first = make(tmp_path / "control.json", control=WINDOW)
    assert await first.set(["control.admit_share=0.7", "control.hold_seconds=null"]) == [
        "control.admit_share 0.8 -> 0.7",
        "control.hold_seconds 4.0 -> null",
    ]
    with pytest.raises(InputError, match="admit_share"):
        await first.set(["control.pause_share=0.6"])
    with pytest.raises(InputError):
        await first.set(["control.u_high=0.6"])
    # Two pools of 2,500 tokens each.
    await first.introduce("last", Host(), [], await first.incarnation())
    first._begin()
    first._period([Answers({}, frozenset())])
    status = await first.status()
    assert (status["window"], status["window_tokens"], status["footprint_tokens"]) == (None, 2 * 1750, 0)
    await first.close()
    second = make(tmp_path / "control.json", control=WINDOW)
    assert second._governor.control == TokenWindow(policy="token_window", admit_share=0.7)
    (told,) = await changes_of(second)
    assert told == "after a restart of the controller: control.admit_share 0.8 -> 0.7, control.hold_seconds 4.0 -> null"


async def test_a_pause_survives_and_a_second_one_is_no_news(tmp_path: Path) -> None:
    first = make(tmp_path / "control.json")
    assert [await first.suspend(True), await first.suspend(True)] == [True, False]
    assert await changes_of(first) == {"paused"}
    second, host = make(tmp_path / "control.json"), Host()
    holds = Membership("a", State.TOOL_WAIT, 4, admitted=True, holds_place=True, pool="p")
    waits = Membership("b", State.PENDING, 0, admitted=False, holds_place=False)
    await second.introduce("host", host, [holds, waits], await second.incarnation())
    assert (await second.status())["suspended"]
    # The one that holds a place is called back, the one that waits is not let in.
    assert [(permit.agent, permit.allowed) for permit in host.permits] == [("a", False)]
    assert await second.suspend(False)
    assert {(permit.agent, permit.allowed) for permit in host.permits[1:]} == {("a", True), ("b", True)}
    (told,) = await changes_of(second)
    assert told == "after a restart of the controller: paused; resumed"


async def test_what_cannot_be_kept_is_not_done(tmp_path: Path) -> None:
    controller = make(tmp_path / "missing" / "control.json")
    with pytest.raises(TraceError):
        await controller.set(["control.alpha=5"])
    with pytest.raises(TraceError):
        await controller.suspend(True)
    assert controller._governor.control == CONTROL
    assert not (await controller.status())["suspended"]
    assert await changes_of(controller) == {None}


async def test_an_introduction_meant_for_an_earlier_controller_is_void() -> None:
    """Its permits may still be on their way to the host, which would take them for ours."""
    controller, host = make(None), Host()
    await controller.introduce("host", host, [], await controller.incarnation() - 1)
    assert not await controller.report("host", [])
    await controller.introduce("host", host, [], await controller.incarnation())
    assert await controller.report("host", [])
    await controller.close()


async def test_the_host_that_has_an_agent_cancels_it_and_a_silent_one_is_named() -> None:
    controller = make(None, hosts=3)
    hosts = {"host0": Host("a"), "host1": Host("b", "c"), "host2": Host("d", answers=False)}
    for name, host in hosts.items():
        await controller.introduce(name, host, [], await controller.incarnation())
    assert [await controller.cancel("c"), await controller.cancel("x")] == [True, False]
    assert {name: host.cancelled for name, host in hosts.items()} == {"host0": [], "host1": ["c"], "host2": []}
    picture = await controller.picture()
    assert [row["agent_id"] for row in picture["agents"]] == ["a", "b", "c"]
    assert picture["silent_hosts"] == ["host2"]
    assert await changes_of(controller) == {"cancelled c"}
