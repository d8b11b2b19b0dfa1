"""What a run looks like at one moment, joined from the controller's and the hosts' accounts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What the prompts of the turns that tell their cached tokens consist of.
_COMPUTED = ("first_tokens", "recomputed_tokens", "rounding_tokens")
_CACHED = ("cached_device_tokens", "cached_host_tokens", "cached_storage_tokens")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`control` is the last control period's row with the window as it is now; `sums` add up all agents' turns.

    `endings` counts ended agents: finished, limit, and the failure classes of those that failed. `notes` are for
    people; `stuck` is why no turn can end or be recorded, if that is so.
    """

    seconds: float
    agents: int
    control: Mapping[str, Any] = field(default_factory=dict)
    sums: Mapping[str, float] = field(default_factory=dict)
    endings: Mapping[str, int] = field(default_factory=dict)
    rewarded: int = 0
    reward: float = 0.0
    loop_lag_p99_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    stuck: str | None = None

    @property
    def ended(self) -> int:
        """Agents that have a final row."""
        return sum(self.endings.values())

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens so far that were cached on the device; None where no cached tokens are told."""
        return self._share("cached_device_tokens", (*_COMPUTED, *_CACHED))

    @property
    def recomputed_share(self) -> float | None:
        """Share of all computed prompt tokens so far that had been computed before."""
        return self._share("recomputed_tokens", _COMPUTED)

    @property
    def eta_seconds(self) -> float | None:
        """Time left if agents go on ending at the mean rate so far; None before a tenth of them has ended."""
        if self.ended * 10 < self.agents:
            return None
        return self.seconds / self.ended * (self.agents - self.ended)

    def _share(self, part: str, parts: Iterable[str]) -> float | None:
        whole = sum(self.sums.get(name, 0) for name in parts)
        return self.sums.get(part, 0) / whole if whole else None


def join(seconds: float, agents: int, control: Mapping[str, Any], hosts: Iterable[Mapping[str, Any]]) -> Snapshot:
    """One snapshot from the parts' accounts."""
    sums: dict[str, float] = {}
    endings: dict[str, int] = {}
    rewarded, reward, lag = 0, 0.0, 0.0
    obstacles, notes = _obstacles(control), control_notes(control)
    for host in hosts:
        for totals, part in ((sums, host["sums"]), (endings, host["endings"])):
            for name, value in part.items():
                totals[name] = totals.get(name, 0) + value
        rewarded += host["rewards"][0]
        reward += host["rewards"][1]
        lag = max(lag, host["loop_lag_p99_seconds"])
        if host["recorder_error"]:
            obstacles.append(f"records wait: {host['recorder_error']}")
            notes.append(obstacles[-1])
    stuck = obstacles[0] if obstacles else None
    return Snapshot(seconds, agents, control, sums, endings, rewarded, reward, lag, tuple(notes), stuck)


def control_notes(control: Mapping[str, Any]) -> list[str]:
    """What a person should know of the controller's account of itself (see `Controller.status`)."""
    notes = _obstacles(control)
    silent = control.get("silent_pools") or []
    if 0 < len(silent) < len(control["pools"]):
        one = len(silent) == 1
        name = f"pool {silent[0]} does" if one else f"pools {', '.join(silent)} do"
        notes.append(f"{name} not answer: {'its' if one else 'their'} agents wait")
    notes += [f"pool {pool}: {note}" for pool, note in (control.get("drifts") or {}).items()]
    if control.get("suspended"):
        notes.append("paused by the operator")
    return notes


def _obstacles(control: Mapping[str, Any]) -> list[str]:
    """What no agent's turn gets past."""
    found = [f"control has stopped: {control['problem']}"] if control.get("problem") else []
    silent = control.get("silent_pools")
    if silent and len(silent) == len(control["pools"]):
        found.append("the engine does not answer: its agents wait")
    return found
