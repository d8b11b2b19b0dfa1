"""One schedule, always the same, of claims under an admission; prints its permits and beats, a line each."""

from __future__ import annotations

import asyncio
import random

from concur_batch.agent.claim import Wish
from concur_batch.agent.gate import Gate
from concur_batch.control.admission import Admission
from concur_batch.control.member import Event, State, Traits
from concur_batch.control.rules import Rules

RULES = Rules(
    victim_order="largest",
    resume_order="smallest",
    max_consecutive_pauses=1,
    longest_pause_seconds=9.0,
    longest_tool_wait_seconds=5.0,
    long_request_tokens=150,
    growth_turns=1,
    shares={"red": 2.0},
)
AGENTS, ROUNDS = 40, 150


class Batch:
    def __init__(self) -> None:
        self.random = random.Random(5)
        self.admission = Admission(RULES, ("p", "q", "r"), granting=True)
        self.events: list[Event] = []
        self.gate = Gate(self.events.append, RULES)
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def agent(self, name: str, traits: Traits) -> None:
        context_tokens, new_tokens = 10, 10
        for _ in range(8):
            await self.gate.enter(name, Wish(context_tokens, new_tokens), traits)
            for _ in range(self.random.randint(1, 4)):
                await asyncio.sleep(0)
            if self.random.random() < 0.1:
                self.gate.refuse(name, "down")
                continue
            context_tokens += self.random.randint(1, 60)
            self.gate.generated(name, context_tokens)
            for _ in range(self.random.randint(1, 4)):
                await asyncio.sleep(0)
            new_tokens = self.random.choice((10, 10, 200))
        self.gate.leave(name)

    async def run(self) -> None:
        for number in range(AGENTS):
            traits = Traits(number % 2, ("red", "green", "blue")[number % 3], float(number) if number % 5 else None)
            name = f"agent{number}"
            self.tasks[name] = asyncio.create_task(self.agent(name, traits))
        for number in range(ROUNDS):
            await asyncio.sleep(0)
            now_seconds = float(number)
            beats = self.gate.take_beats()
            self.admission.beat(beats, now_seconds)
            permits = []
            while self.events:
                permits += self.admission.take(self.events.pop(0), now_seconds)
            for window in self.admission.windows.values():
                window.pool_tokens = 4000
                window.evicted_tokens += self.random.choice((0, 0, 2500))
            pool = self.random.choice("pqr")
            permits += self.admission.reopen(pool, now_seconds)
            if number % 20 == 19:
                permits += self.admission.close(pool, now_seconds)
            permits += self.admission.resize({name: self.random.randint(0, 6) for name in "pqr"}, now_seconds)
            self.gate.apply(permits)
            # How long a tool took is no matter of the order.
            for line in (*(beat._replace(waited_seconds=None) for beat in beats), *permits):
                print(line)
        print(self.admission.counts()[State.FINISHED])
        for task in self.tasks.values():
            task.cancel()


if __name__ == "__main__":
    asyncio.run(Batch().run())
