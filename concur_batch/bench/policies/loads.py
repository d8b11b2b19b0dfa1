"""The loads that policies are compared on, drawn with a seed. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from concur_batch.bench.plan import Plan, Turn
from concur_batch.bench.plans import Load

Range = tuple[float, float]
_OWN_PROMPT_TOKENS = (100, 500)


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a load. Counts are uniform within their ranges, `tool_seconds` log-uniform. `heavy`: turns geometric with the
    range's middle as their mean, observations and tools log-normal with the range as its middle two thirds.
    `slow_share` of the tool calls take `slow_seconds` instead."""

    agents: int
    turns: tuple[int, int] = (10, 20)
    shared_tokens: int = 2000
    output_tokens: tuple[int, int] = (100, 400)
    observation_tokens: tuple[int, int] = (200, 1200)
    tool_seconds: Range = (1.0, 10.0)
    heavy: bool = False
    slow_share: float = 0.0
    slow_seconds: Range = (30.0, 120.0)


SHAPES: Mapping[str, Shape] = {
    "base": Shape(256),
    "short waits": Shape(256, tool_seconds=(0.1, 1.0)),
    "long waits": Shape(256, tool_seconds=(5.0, 60.0)),
    "long shared prompt": Shape(256, shared_tokens=8000),
    "heavy-tailed": Shape(256, heavy=True),
    "few and long": Shape(128, turns=(20, 40), observation_tokens=(500, 2500)),
    "mixed tools": Shape(256, tool_seconds=(0.1, 2.0), slow_share=0.1),
}

# Loads that nothing was tuned on.
UNSEEN: Mapping[str, Shape] = {
    "many and short": Shape(512, turns=(4, 8), observation_tokens=(100, 600)),
    "large outputs": Shape(256, output_tokens=(500, 1500), observation_tokens=(100, 400)),
    "no waits": Shape(256, tool_seconds=(0.01, 0.05)),
    "slow tools": Shape(192, tool_seconds=(20.0, 200.0)),
    "few agents": Shape(32, turns=(15, 40), observation_tokens=(500, 3000)),
}


def make_load(shape: Shape, seed: int) -> Load:
    """The agents of a shape."""
    random = np.random.default_rng(seed)
    return Load(tuple(_plan(shape, number, random) for number in range(shape.agents)), shape.shared_tokens)


def _plan(shape: Shape, number: int, random: np.random.Generator) -> Plan:
    low, high = shape.turns
    count = int(random.geometric(2 / (low + high))) if shape.heavy else int(random.integers(low, high + 1))
    count = min(count, 6 * high)
    turns = []
    for turn in range(count):
        new_tokens = _uniform(_OWN_PROMPT_TOKENS, random) if not turn else _observation(shape, random)
        turns.append(Turn(new_tokens, _uniform(shape.output_tokens, random), _tool_seconds(shape, random)))
    return Plan(f"agent-{number:04d}", tuple(turns))


def _observation(shape: Shape, random: np.random.Generator) -> int:
    if not shape.heavy:
        return _uniform(shape.observation_tokens, random)
    return max(1, min(20_000, round(_lognormal(shape.observation_tokens, random))))


def _tool_seconds(shape: Shape, random: np.random.Generator) -> float:
    low, high = shape.slow_seconds if random.random() < shape.slow_share else shape.tool_seconds
    if shape.heavy:
        return min(600.0, _lognormal((low, high), random))
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


def _lognormal(middle: Range, random: np.random.Generator) -> float:
    """One standard deviation to either side of the median spans the range."""
    low, high = math.log(middle[0]), math.log(middle[1])
    return float(random.lognormal((low + high) / 2, (high - low) / 2))


def _uniform(span: tuple[int, int], random: np.random.Generator) -> int:
    return int(random.integers(span[0], span[1] + 1))
