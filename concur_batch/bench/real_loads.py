"""What `make bench-real` runs: loads on each engine, and the systems that are compared on each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class System:
    """What is compared: a control, on a server with or without HiCache."""

    name: str
    control: dict[str, Any]
    hicache: bool = False


@dataclass(frozen=True, slots=True)
class RealLoad:
    """What agents do on an engine: its workload of this name, with `settings` as `concur run --set` takes them. Loads
    of the same workload run on the same server. `name` is empty for the load that an engine had first."""

    engine: str
    name: str
    workload: str
    systems: tuple[System, ...]
    settings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Of its table."""
        return f"{self.engine}, {self.name or 'the first load'}"


def _cap(policy: str, cap: int) -> System:
    return System(f"{policy} {cap}", {"policy": policy, "cap": cap})


_LAW = {"policy": "concur", "initial_window": 4}
_NONE = {"policy": "none"}
_FIRST = (
    RealLoad(
        "sglang",
        "",
        "sglang",
        (
            System("none", _NONE),
            _cap("request_cap", 6),
            *(_cap("agent_cap", cap) for cap in (3, 5, 8)),
            System("concur", _LAW),
            System("HiCache, none", _NONE, hicache=True),
            System("HiCache, concur", _LAW, hicache=True),
        ),
    ),
    RealLoad(
        "vllm",
        "",
        "vllm",
        (
            System("none", _NONE),
            _cap("request_cap", 8),
            *(_cap("agent_cap", cap) for cap in (6, 9, 16)),
            System("concur", _LAW),
        ),
    ),
)

_TOOL_SECONDS = {"short waits": "[0.2, 2.0]", "long waits": "[2.0, 8.0]"}
# Around the best one in simulations with costs fitted to real runs (docs/real-engine.md).
_GRID_CAPS = {
    ("sglang", "short waits", 200): (3, 5, 7),
    ("sglang", "short waits", 1000): (2, 3, 5),
    ("sglang", "long waits", 200): (5, 7, 9),
    ("sglang", "long waits", 1000): (5, 7, 9),
    ("vllm", "short waits", 200): (6, 9, 12),
    ("vllm", "short waits", 1000): (4, 6, 8),
    ("vllm", "long waits", 200): (7, 9, 12),
    ("vllm", "long waits", 1000): (7, 9, 12),
}
GRID = tuple(
    RealLoad(
        engine,
        f"{waits}, {shared_tokens} shared tokens",
        f"{engine}_grid",
        (
            System("none", _NONE),
            *(_cap("agent_cap", cap) for cap in caps),
            System("concur", _LAW),
            System("token_window", {"policy": "token_window"}),
        ),
        (
            f"replay.synthetic.tool_seconds={_TOOL_SECONDS[waits]}",
            f"replay.synthetic.shared_tokens={shared_tokens}",
        ),
    )
    for (engine, waits, shared_tokens), caps in _GRID_CAPS.items()
)
LOADS = (*GRID, *_FIRST)
