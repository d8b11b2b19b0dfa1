"""What an agent is told to do, and how it may end. Plain data that crosses from the driver to the hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from concur_batch.agent.trajectory import Trajectory
from concur_batch.control.member import NO_TRAITS, Traits

Status = Literal["finished", "limit", "oversized", "failed", "cancelled"]
FailureClass = Literal["model", "tool", "infrastructure", "limit", "cancelled"]


@dataclass(frozen=True, slots=True)
class CommandCheck:
    """A command to run in the workspace after the agent's end, with files that the agent never saw."""

    command: str
    files: Mapping[str, str]
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """The expected answer and how to compare the submitted one with it."""

    expected: str
    match: Literal["exact", "number", "regex"]


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent: one sample of one task. `check` is how its result is judged, None for no reward. One that is replayed
    has a `trajectory`, and no use for its prompt.

    `attempt` is the number of its next attempt, of those that it may have so many (`attempts_before`) are used up. With
    `goes_on`, turns of that attempt are on record, and it goes on behind the last of them.
    """

    agent_id: str
    task_id: str
    sample: int
    seed: int
    prompt: str
    files: Mapping[str, str] = field(default_factory=dict)
    check: CommandCheck | AnswerCheck | None = None
    traits: Traits = NO_TRAITS
    trajectory: Trajectory | None = None
    attempt: int = 0
    attempts_before: int = 0
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended.

    finished: the agent said that it is done. limit: one of its limits ended it, cleanly. oversized: its history fits no
    KV pool. cancelled: the operator ended it. failed: see the class;
    `model` is the model's own doing (malformed actions in a row), `infrastructure` is nobody's and is tried again.
    """

    status: Status
    reason: str
    failure_class: FailureClass | None = None
    error: str | None = None
    answer: str | None = None
