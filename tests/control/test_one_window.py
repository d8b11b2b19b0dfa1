"""One implementation of the window drives the Ray controller and the simulated batch: same calls, same decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from concur_batch.bench.batch import simulate_batch
from concur_batch.bench.plan import EnginePlan, Plan, Turn
from concur_batch.control.admission import Admission
from concur_batch.control.controller import Controller, ControllerConfig
from concur_batch.control.gauges import Answers
from concur_batch.control.governor import Governor
from concur_batch.control.window import Window
from concur_batch.engine.pools import PoolAddress
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.workload.schema import Concur, Extensions

CONTROL = Concur(
    policy="concur",
    initial_window=3,
    period_seconds=0.5,
    extensions=Extensions(longest_tool_wait_seconds=5, long_request_tokens=150),
)
COST = CostModel(1e-3, 0.0, 0.02, 0.0, 0.0)
POOLS = ("0", "1")

Call = tuple[str, tuple[Any, ...], Any]


class Log:
    """Every call that changes the windows, with its arguments and what it returned, whoever makes it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Call] = []
        self.windows: set[type] = set()
        for owner, name in (
            (Governor, "begin"),
            (Governor, "period"),
            (Governor, "spent"),
            (Admission, "take"),
            (Admission, "beat"),
        ):
            monkeypatch.setattr(owner, name, self._logged(name, getattr(owner, name)))

    def _logged(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(this: Any, *arguments: Any) -> Any:
            result = method(this, *arguments)
            admission = this.admission if isinstance(this, Governor) else this
            self.windows |= {type(window) for window in admission.windows.values()}
            if name != "beat" or arguments[0]:  # one about nobody is no beat
                self.calls.append((name, arguments, result))
            return result

        return call

    def take(self) -> list[Call]:
        calls, self.calls = self.calls, []
        return calls


class Host:
    """What a controller pushes to a host."""

    def __init__(self) -> None:
        self.permits: list[Any] = []
        self.permit = SimpleNamespace(remote=self._take)
        self.hang_ups: list[str] = []
        self.hang_up = SimpleNamespace(remote=self.hang_ups.append)

    def _take(self, incarnation: int, permits: list[Any]) -> None:
        self.permits += permits


def simulate() -> None:
    """Agents that are cut, that get long results, that hang, and a pool that dies: every kind of decision."""
    plans = [
        Plan(
            f"a{number:02d}",
            tuple(
                Turn(200 if (number + turn) % 5 == 0 else 60, 12, 9.0 if (number + turn) % 7 == 0 else 0.5)
                for turn in range(6)
            ),
        )
        for number in range(16)
    ]
    config = EngineConfig(pool_tokens=2500)
    engines = {"0": EnginePlan(config, COST), "1": EnginePlan(config, COST, outage_seconds=(6.3, 14.2))}
    simulate_batch(plans, CONTROL, engines)


async def test_the_controller_decides_as_the_simulated_batch_call_for_call(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    simulate()
    simulated = log.take()
    made = {name: sum(call[0] == name for call in simulated) for name, *_ in simulated}
    assert made.keys() == {"begin", "period", "spent", "take", "beat"}
    assert {call[1][0].kind for call in simulated if call[0] == "take"} == {
        *("arrive", "boundary", "large", "down", "release")
    }

    # Its own loop never wakes: its periods are ended by hand.
    monkeypatch.setattr(Controller, "_control", lambda _: asyncio.sleep(3600))
    controller, host = make_controller(), Host()
    moment = [0.0]
    monkeypatch.setattr(controller, "_now", lambda: moment[0])
    for name, arguments, _ in simulated:
        if name != "spent":  # which takes no time
            moment[0] = arguments[-1]
        match name:
            case "begin":
                await controller.introduce("host", host, [], await controller.incarnation())
            case "take":
                assert await controller.report("host", [arguments[0]])
            case "beat":
                assert await controller.beat("host", list(arguments[0]), {})
            case "spent":
                assert await controller.beat("host", [], {arguments[0]: arguments[1]})
            case "period":
                readings = {pool: of[0] for pool, of in arguments[0].items() if of}
                controller._period([Answers(readings, frozenset())])
    real = log.take()
    await controller.close()

    assert [name for name, *_ in real] == [name for name, *_ in simulated]
    for ours, theirs in zip(real, simulated, strict=True):
        assert ours[2] == theirs[2]  # the permits, and the control rows of a period
    assert host.permits == [permit for call in simulated for permit in permits_of(call)]
    assert log.windows == {Window}
    assert host.hang_ups == ["1"]  # the pool that died


def permits_of(call: Call) -> list[Any]:
    name, _, result = call
    if name in ("begin", "take"):
        return list(result)
    return list(result[0]) if name == "period" else []


def make_controller() -> Controller:
    recorder = SimpleNamespace(commit=SimpleNamespace(remote=_commit))
    # Nobody listens on this port; none of these pools is asked for anything before the end.
    pools = tuple(PoolAddress(name, f"http://127.0.0.1:{9 + int(name)}", None, None, 1, 2500) for name in POOLS)
    return Controller(ControllerConfig("run", 0.0, pools, CONTROL, agents=16, hosts=1), recorder)


async def _commit(lines: bytes) -> None:
    """What becomes of the rows is not this test's business."""
