"""What rollouts do at a gate, step by step as a test says."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple

from concur_batch.agent.claim import Wish
from concur_batch.agent.gate import Gate
from concur_batch.control.member import Traits


class Step(NamedTuple):
    """What an agent is told to do next; `tokens` are what its history grows by, or what is new in its next prompt."""

    kind: Literal["generated", "down", "small", "tool", "end", "raise"]
    tokens: int = 10


class Agent:
    """`steps` takes what it is to do next, `doing` tells what it does."""

    def __init__(self, name: str, host: str, gate: Gate, traits: Traits, context_tokens: int) -> None:
        self.name, self.host, self.gate, self.traits = name, host, gate, traits
        self.doing: Literal["waits", "generates", "tool", "parks", "ended"] = "waits"
        self.pool = ""
        self.steps: asyncio.Queue[Step] = asyncio.Queue()
        self.context_tokens = context_tokens
        self.task = asyncio.create_task(self.live())
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is told to raise

    async def live(self) -> None:
        new_tokens, outgrown = 10, False
        try:
            while True:
                self.doing = "waits"
                wish = Wish(self.context_tokens, new_tokens, outgrown)
                leave = await self.gate.enter(self.name, wish, self.traits)
                self.doing, self.pool, new_tokens, outgrown = "generates", leave.pool, 10, False
                step = await self.steps.get()
                if step.kind == "generated":
                    self.context_tokens += step.tokens
                    self.gate.generated(self.name, self.context_tokens)
                    self.doing = "tool"
                    step = await self.steps.get()
                    new_tokens, outgrown = step.tokens, step.kind == "small"
                elif step.kind in ("down", "small"):
                    self.gate.refuse(self.name, "down" if step.kind == "down" else "large")
                    self.doing = "parks"
                    step = await self.steps.get()
                if step.kind == "end":
                    return
                if step.kind == "raise":
                    raise RuntimeError("whatever it was")
        finally:
            self.gate.leave(self.name)
            self.doing = "ended"
