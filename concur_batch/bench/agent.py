"""A planned agent: how far it is, what a host's gate knows of it, and its row of the agents table. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from concur_batch.bench.plan import Plan, Turn
from concur_batch.control.member import Beat, Permit, State
from concur_batch.control.rules import Rules
from concur_batch.simulator.request import Completion, Request, TokenIds

Row = dict[str, Any]
Asking = Literal["arrive", "boundary", "large", "down"]

_FIGURES = (
    *("turns", "tool_calls", "input_tokens", "output_tokens", "cached_device_tokens", "recomputed_tokens", "pauses"),
    *("pending_seconds", "paused_seconds", "queue_seconds", "ended_seconds"),
)
# The column that counts the wait in each of these states.
_WAITS = {
    State.PENDING: "pending_seconds",
    State.PAUSED: "paused_seconds",
    State.QUEUED: "queue_seconds",
}


class PlannedAgent:
    """Follows the protocol of `agent/gate.py`. `ids` is the whole history to be, of which `prompt_tokens` begin the
    next or present generation, and `context_tokens` were the history after the last one."""

    def __init__(self, plan: Plan, ids: TokenIds, prompt_tokens: int) -> None:
        self.plan = plan
        self.ids = ids
        self.prompt_tokens = prompt_tokens
        self.context_tokens = 0
        self.state = State.PENDING
        self.epoch = 0
        self.allowed = False
        self.down = False  # its pool did not answer
        self.pool = ""
        self.row: Row = {"task_id": plan.agent, "sample": 0, "final": True, "status": ""} | dict.fromkeys(_FIGURES, 0)
        self._asked_seconds = 0.0

    @property
    def name(self) -> str:
        return self.plan.agent

    @property
    def turn(self) -> Turn:
        """The turn it is in, or waits for."""
        return self.plan.turns[self.row["turns"]]

    @property
    def rid(self) -> str:
        """The name of its next or present request."""
        return f"{self.name}/{self.row['turns']}"

    @property
    def waits(self) -> bool:
        """Whether it wants to generate and may not."""
        return self.state in _WAITS

    def asks(self, rules: Rules) -> Asking | None:
        """What it must ask for before its next generation; None where its permit is enough."""
        if self.down:
            return "down"
        if not self.epoch or rules.per_generation:
            return "arrive"
        if not self.allowed:
            return "boundary"
        most = rules.long_request_tokens
        return "large" if most is not None and self.prompt_tokens - self.context_tokens > most else None

    def begin_wait(self, asked: Asking, now_seconds: float) -> None:
        """It has asked."""
        self.allowed = self.down = False
        self._asked_seconds = now_seconds
        if asked == "arrive":
            self.state = State.QUEUED if self.epoch else State.PENDING
        else:
            self.state = State.PAUSED
            self.row["pauses"] += 1

    def take(self, permit: Permit, now_seconds: float) -> bool:
        """Take over a permit; whether it ends a wait."""
        self.epoch, self.allowed = permit.epoch, permit.allowed
        if not permit.allowed:
            return False
        self.pool = permit.pool
        if not self.waits:
            return False
        self.row[_WAITS[self.state]] += now_seconds - self._asked_seconds
        return True

    def request(self) -> Request:
        """Its next generation, as long as the plan says: as in a replay."""
        output_tokens, end = self.turn.output_tokens, self.prompt_tokens + self.turn.output_tokens
        said = self.ids[self.prompt_tokens : end]
        return Request(self.rid, self.ids[: self.prompt_tokens], said, output_tokens, ignore_eos=True)

    def account(self, completion: Completion, page_size: int) -> int:
        """Count a generation that ended; how many tokens of its prompt had been computed for this agent before."""
        # The newest output token has no KV before it is part of a prompt, and a cache keeps whole pages only.
        reusable_tokens = max(0, self.context_tokens - 1) // page_size * page_size
        recomputed_tokens = max(0, reusable_tokens - completion.cached_tokens)
        self.context_tokens = completion.prompt_tokens + completion.completion_tokens
        self.row["turns"] += 1
        self.row["input_tokens"] += completion.prompt_tokens
        self.row["output_tokens"] += completion.completion_tokens
        self.row["cached_device_tokens"] += completion.cached_tokens
        self.row["recomputed_tokens"] += recomputed_tokens
        return recomputed_tokens

    def begin_tool(self) -> None:
        """It calls the tool whose result is part of its next prompt."""
        self.state = State.TOOL_WAIT
        self.row["tool_calls"] += 1
        self.prompt_tokens = self.context_tokens + self.turn.new_tokens

    def beat(self) -> Beat:
        """What its host tells of it while it holds a place."""
        return Beat(self.name, self.state, self.prompt_tokens if self.state is State.ACTIVE else self.context_tokens)


def make_agents(plans: Iterable[Plan], shared_tokens: int) -> dict[str, PlannedAgent]:
    """The agents by name. Beyond the shared ones each has token ids of its own, so that the engines' caches share what
    real ones would."""
    agents: dict[str, PlannedAgent] = {}
    shared = np.arange(shared_tokens, dtype=np.int32)
    unused = shared_tokens
    for plan in plans:
        own = np.arange(unused, unused + plan.tokens, dtype=np.int32)
        unused += plan.tokens
        prompt_tokens = shared_tokens + plan.turns[0].new_tokens
        agents[plan.agent] = PlannedAgent(plan, np.concatenate((shared, own)), prompt_tokens)
    return agents
