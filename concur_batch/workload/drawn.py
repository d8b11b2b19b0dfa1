"""Lengths and tool times of drawn trajectories: decided by the seed and the agent's number alone. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from concur_batch.workload.schema import Trajectories


@dataclass(frozen=True, slots=True)
class DrawnTurn:
    """`new_tokens` come before it, without what all prompts share; `tool_seconds` is None after the last turn."""

    new_tokens: int
    output_tokens: int
    tool_seconds: float | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """An agent's turns, and a seed for the token ids of its texts."""

    turns: tuple[DrawnTurn, ...]
    ids_seed: int


def drawn_task(number: int) -> str:
    """The name of the task that the agent of this number is of."""
    return f"drawn-{number:06d}"


def draw(section: Trajectories, number: int) -> Drawn:
    """The agent of this number, from zero."""
    rng = random.Random(f"{section.seed}/{number}")
    ids_seed = rng.getrandbits(64)
    count = rng.randint(*section.turns)
    turns = []
    for index in range(count):
        new_tokens = rng.randint(*(section.observation_tokens if index else section.prompt_tokens))
        tool_seconds = log_uniform(rng, section.tool_seconds)
        last = index + 1 == count
        turns.append(DrawnTurn(new_tokens, rng.randint(*section.output_tokens), None if last else tool_seconds))
    return Drawn(tuple(turns), ids_seed)


def log_uniform(rng: random.Random, span: tuple[float, float]) -> float:
    """A number between these two, 0 where both are."""
    low, high = span
    return math.exp(rng.uniform(math.log(low), math.log(high))) if high else 0.0
