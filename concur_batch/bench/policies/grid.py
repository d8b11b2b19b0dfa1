"""What `make bench-policies` simulates: policies, and the settings they are compared in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from concur_batch.bench.plan import EnginePlan
from concur_batch.bench.policies.loads import SHAPES, UNSEEN, Shape, make_load
from concur_batch.bench.policies.rivals import EPISODES, PROGRAMS, make_episode_cap, make_program_budget
from concur_batch.bench.simulations import Simulation
from concur_batch.control.governor import MakePolicy
from concur_batch.control.policies import make_policy
from concur_batch.workload.hardware import Hardware, hardware_of
from concur_batch.workload.loading import load
from concur_batch.workload.schema import AgentCap, AnyControl, Concur, NoControl, TokenWindow

_WORKLOADS = Path(__file__).parents[3] / "workloads" / "paper"
DEPLOYMENTS = {
    "Qwen3-32B TP8": "qwen3-32b-tp8",
    "Qwen3-32B TP4": "qwen3-32b-tp4",
    "Qwen3-32B TP2": "qwen3-32b-tp2",
    "DeepSeek-V3 TP16": "deepseek-v3-40",
}
LAW_WINDOWS = (8, 32, 128)
CAPS = (8, 16, 24, 32, 48, 64, 96, 128, 192)


@dataclass(frozen=True, slots=True)
class Rival:
    """A policy under its name, on an engine with or without HiCache and session tags, or a pool that nothing fills."""

    control: AnyControl
    hicache: bool = False
    sessions: bool = False
    unlimited: bool = False
    make: MakePolicy = make_policy


@dataclass(frozen=True, slots=True)
class Setting:
    """Where policies are compared."""

    deployment: str
    load: str
    seed: int


NONE = NoControl(policy="none")
RIVALS: Mapping[str, Rival] = {
    "none": Rival(NONE),
    "unlimited": Rival(NONE, unlimited=True),
    "HiCache": Rival(NONE, hicache=True),
    "token_window": Rival(TokenWindow(policy="token_window")),
    "token_window, sessions": Rival(TokenWindow(policy="token_window"), sessions=True),
    "ThunderAgent-like": Rival(PROGRAMS, make=make_program_budget),
    "prime-rl-like": Rival(EPISODES, make=make_episode_cap),
    **{f"concur {window}": Rival(Concur(policy="concur", initial_window=window)) for window in LAW_WINDOWS},
    **{f"cap {cap}": Rival(AgentCap(policy="agent_cap", cap=cap)) for cap in CAPS},
}


def settings(seeds: int, *, unseen: bool = False) -> list[Setting]:
    """Every load on every deployment under every seed."""
    loads = UNSEEN if unseen else SHAPES
    return [Setting(deployment, name, seed) for deployment in DEPLOYMENTS for name in loads for seed in range(seeds)]


def agents_of(setting: Setting) -> int:
    """How many the batch has."""
    return _shape(setting).agents


def simulation(setting: Setting, rival: Rival) -> Simulation:
    """One policy in one setting."""
    hardware = _hardware(DEPLOYMENTS[setting.deployment], rival.hicache, rival.sessions)
    engines = {name: EnginePlan(config, hardware.cost) for name, config in hardware.engines.items()}
    made = make_load(_shape(setting), setting.seed)
    if rival.unlimited:
        tokens = sum(plan.tokens + made.shared_tokens for plan in made.plans)
        engines = {
            name: replace(engine, config=replace(engine.config, pool_tokens=max(tokens, engine.config.pool_tokens)))
            for name, engine in engines.items()
        }
    return Simulation(made, rival.control, engines, rival.make)


def _shape(setting: Setting) -> Shape:
    return {**SHAPES, **UNSEEN}[setting.load]


@cache
def _hardware(row: str, hicache: bool, sessions: bool) -> Hardware:
    overrides = ["simulate.calibration=typical", f"simulate.sessions={sessions}".lower()]
    overrides += ["simulate.hicache={}"] if hicache else []
    return hardware_of(load(_WORKLOADS / f"{row}.yaml", overrides))
