"""A planned agent: how far it is, its claim to generate, and its row of the agents table. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from concur_batch.agent.claim import Claim, Wish
from concur_batch.agent.transcript import account
from concur_batch.bench.plan import Plan, Turn
from concur_batch.control.prefill import request_rate
from concur_batch.simulator.request import Completion, Request, TokenIds

Row = dict[str, Any]

_FIGURES = (
    *("turns", "tool_calls", "input_tokens", "output_tokens", "cached_device_tokens", "cached_host_tokens"),
    *("recomputed_tokens", "pauses"),
    *("pending_seconds", "paused_seconds", "queue_seconds", "ended_seconds"),
)


class PlannedAgent:
    """`ids` is the whole history to be, of which `prompt_tokens` begin the next or present generation, and
    `context_tokens` were the history after the last one; all agents' begin with `shared_tokens`. `refused_tokens` is
    the size of the largest pool that was too small for the present one, 0 for none. `paused`: it had to wait for that
    one though it had had a place."""

    def __init__(self, plan: Plan, ids: TokenIds, prompt_tokens: int, shared_tokens: int = 0) -> None:
        self.plan = plan
        self.shared_tokens = shared_tokens
        self.ids = ids
        self.prompt_tokens = prompt_tokens
        self.context_tokens = 0
        self.refused_tokens = 0
        self.paused = False
        self.claim = Claim(plan.agent)
        self.row: Row = {"task_id": plan.agent, "sample": 0, "final": True, "status": ""} | dict.fromkeys(_FIGURES, 0)

    @property
    def name(self) -> str:
        return self.plan.agent

    @property
    def turn(self) -> Turn:
        """The turn it is in, or waits for."""
        return self.plan.turns[self.row["turns"]]

    @property
    def known_tokens(self) -> int:
        """Computed before: the newest output token has no KV before it is part of a prompt."""
        return max(0, self.context_tokens - 1)

    @property
    def rid(self) -> str:
        """The name of its next or present request."""
        return f"{self.name}/{self.row['turns']}"

    def wish(self, *, outgrown: bool) -> Wish:
        """What it wants to generate on; a pool that was too small for it counts as filled."""
        tokens = max(self.prompt_tokens, self.refused_tokens)
        return Wish(tokens, self.prompt_tokens - self.context_tokens, outgrown, self.shared_tokens)

    def passes(self, now_seconds: float) -> str:
        """It goes on, and counts what it has waited; the pool that it generates in."""
        leave = self.claim.passes(now_seconds)
        self.row["pending_seconds"] += leave.pending_seconds
        self.row["paused_seconds"] += leave.paused_seconds
        self.row["queue_seconds"] += leave.queue_seconds
        self.row["pauses"] += leave.paused
        self.paused = leave.paused
        return leave.pool

    def request(self) -> Request:
        """Its next generation, as long as the plan says: as in a replay."""
        output_tokens, end = self.turn.output_tokens, self.prompt_tokens + self.turn.output_tokens
        said = self.ids[self.prompt_tokens : end]
        prompt = self.ids[: self.prompt_tokens]
        return Request(self.rid, prompt, said, output_tokens, ignore_eos=True, session=self.name)

    def recomputed_tokens(self, completion: Completion, page_size: int) -> int:
        """How much of a generation's prompt had been computed for this agent before, and was again."""
        device, host = completion.cached_tokens, completion.host_cached_tokens
        return account(self.known_tokens, completion.prompt_tokens, device, host, 0, page_size).recomputed

    def prefill_rate(self, completion: Completion) -> float:
        """Tokens a second; 0 where the generation says nothing of it."""
        if completion.scheduled_seconds is None or completion.first_token_seconds is None:
            return 0.0
        cached_tokens = completion.cached_tokens + completion.host_cached_tokens
        seconds = completion.first_token_seconds - completion.scheduled_seconds
        return request_rate(completion.prompt_tokens - cached_tokens, seconds)

    def account(self, completion: Completion, recomputed_tokens: int) -> None:
        """Count a generation that ended."""
        self.context_tokens = completion.prompt_tokens + completion.completion_tokens
        self.refused_tokens = 0
        self.row["turns"] += 1
        self.row["input_tokens"] += completion.prompt_tokens
        self.row["output_tokens"] += completion.completion_tokens
        self.row["cached_device_tokens"] += completion.cached_tokens
        self.row["cached_host_tokens"] += completion.host_cached_tokens
        self.row["recomputed_tokens"] += recomputed_tokens

    def begin_tool(self) -> None:
        """It calls the tool whose result is part of its next prompt."""
        self.row["tool_calls"] += 1
        self.prompt_tokens = self.context_tokens + self.turn.new_tokens


def make_agents(plans: Iterable[Plan], shared_tokens: int) -> dict[str, PlannedAgent]:
    """The agents by name. Beyond the shared ones and those of a prompt that several have, each has token ids of its
    own, so that the engines' caches share what real ones would."""
    prompts: dict[str, TokenIds] = {}
    agents: dict[str, PlannedAgent] = {}
    shared = np.arange(shared_tokens, dtype=np.int32)
    unused = shared_tokens
    for plan in plans:
        own = np.arange(unused, unused + plan.tokens, dtype=np.int32)
        unused += plan.tokens
        if plan.prompt is not None:
            first = own[: plan.turns[0].new_tokens]
            first[:] = prompts.setdefault(plan.prompt, first)
        prompt_tokens = shared_tokens + plan.turns[0].new_tokens
        agents[plan.agent] = PlannedAgent(plan, np.concatenate((shared, own)), prompt_tokens, shared_tokens)
    return agents
