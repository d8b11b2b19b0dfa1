"""One attempt of an agent without Ray: an engine that says what a test wants, and an admission with its gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from concur_batch.agent.beginning import Beginning
from concur_batch.agent.config import HostConfig
from concur_batch.agent.gate import Gate
from concur_batch.agent.rollout import Rollout
from concur_batch.agent.services import Pool, Services
from concur_batch.agent.spec import AgentSpec, AnswerCheck, Ending
from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.agent.turnstile import Turnstile
from concur_batch.control.admission import Admission
from concur_batch.control.member import Event, State
from concur_batch.control.rules import Rules
from concur_batch.engine.protocol import FinishReason, Generation, GenerationRequest
from concur_batch.workload.schema import Limits, Sampling, SyntheticTools
from tools_env.spec import ToolResult, ToolSpec
from tools_env.synthetic import SyntheticEnvironment

TOKENIZER = load_tokenizer(Path(__file__).parents[2] / "workloads" / "demo_model")
WORK = '<tool_call>\n{"name": "work", "arguments": {"step": 1}}\n</tool_call>'
SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {"answer": "42"}}\n</tool_call>'
Said = str | tuple[str, FinishReason] | Exception
Outcome = tuple[Ending, dict[str, Any]]


class SayingEngine:
    """Says its lines one after the other; the last one again and again."""

    def __init__(self, *lines: Said) -> None:
        self.lines = list(lines)
        self.requests: list[GenerationRequest] = []
        self.ended: list[str] = []  # sessions

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        if isinstance(line, Exception):
            raise line
        text, reason = line if isinstance(line, tuple) else (line + "<|im_end|>", "stop")
        return Generation(TOKENIZER.encode(text), reason, len(request.input_ids), 0)

    async def end_session(self, session: str) -> None:
        self.ended.append(session)


class Clock:
    """Seconds since the run's start, as a test moves them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class TimedEngine(SayingEngine):
    """Takes two seconds for a generation, or for finding out that it is down."""

    def __init__(self, clock: Clock, *lines: Any) -> None:
        super().__init__(*lines)
        self.clock = clock

    async def generate(self, request: GenerationRequest) -> Generation:
        self.clock.seconds += 2
        return await super().generate(request)


class Hanging:
    """Reaches a point and stays there; counts how often it was torn away."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.aborts = 0

    async def __call__(self, *_: Any) -> Any:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.aborts += 1
            raise


class HangingTools:
    """A session whose calls hang, after so many that do not."""

    workspace = None

    def __init__(self, hanging: Hanging, calls: int = 0) -> None:
        self.hanging = hanging
        self.calls = calls
        self.closed: list[bool] = []

    def specs(self) -> list[ToolSpec]:
        return []

    async def open(self, key: str, files: Any, mark: str | None = None) -> HangingTools:
        return self

    async def save(self, recorded: str) -> str:
        return recorded

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        self.calls -= 1
        if self.calls >= 0:
            return ToolResult("ok", "done")
        return await self.hanging()  # type: ignore[no-any-return]

    async def close(self, keep: bool = False) -> None:
        self.closed.append(keep)


class Desk:
    """An admission over these pools with its gate: the controller without Ray."""

    def __init__(self, capacity: int = 1, pools: Sequence[str] = ("0",)) -> None:
        self.admission = Admission(Rules(), pools, granting=True)
        self.gate = Gate(self.report, self.admission.rules)
        self.resize(capacity)

    def report(self, event: Event) -> None:
        asyncio.get_running_loop().call_soon(self.gate.apply, self.admission.take(event, 0.0))

    def resize(self, capacity: int) -> None:
        self.gate.apply(self.admission.resize(dict.fromkeys(self.admission.windows, capacity), 0.0))

    def reopen(self, pool: str) -> None:
        self.gate.apply(self.admission.reopen(pool, 0.0))

    def state(self) -> State | None:
        member = self.admission.member("t/0#0")
        return None if member is None else member.state

    async def until(self, state: State) -> None:
        while self.state() is not state:  # noqa: ASYNC110
            await asyncio.sleep(0)

    def is_free(self) -> bool:
        """Whether the one agent has gone, and left nothing behind."""
        admission = self.admission
        return (admission.places_held, admission.waiting, admission.counts()[State.FINISHED]) == (0, 0, 1)


class Declared(list[dict[str, Any]]):
    """Intents, durable at once."""

    async def declare(self, place: str, turn: int, row: dict[str, Any]) -> None:
        self.append(row)

    def recorded(self, place: str, turn: int, record: int) -> None:
        pass


class Lines(list[bytes]):
    def put(self, item: bytes) -> int:
        self.append(item)
        return len(self)

    def is_sent(self, number: int) -> bool:
        return True

    async def room(self) -> None:
        pass

    def rows(self, table: str) -> list[dict[str, Any]]:
        lines = [line for item in self for line in item.splitlines() if line.startswith(table.encode() + b"\t")]
        return [orjson.loads(line.split(b"\t", 1)[1]) for line in lines]


SPEC = AgentSpec("t/0", "t", 0, 1, "Do it.", check=AnswerCheck("42", "exact"))


CONFIG = HostConfig(
    run="test",
    name="host0",
    directory=Path(),
    started_at=0.0,
    zero_at=0.0,
    pools=(),
    request_seconds=60.0,
    retries=0,
    tools=SyntheticTools(kind="synthetic"),
    format="hermes",
    system="Be brief.",
    sampling=Sampling(max_tokens=200),
    limits=Limits(),
    attempts=1,
    context_tokens=4000,
    seed=0,
    rules=Rules(),
    kv_budget_tokens=None,
    deadline_seconds=None,
    hosts_on_node=1,
)


def make(engine: SayingEngine, desk: Desk, lines: Lines, **limits: Any) -> Services:
    tools = SyntheticEnvironment((0, 0), (5, 5), 0)
    return Services(
        config=replace(CONFIG, limits=Limits(**limits), context_tokens=limits.get("context_tokens") or 4000),
        pools={name: Pool(engine, None, 1, 8000) for name in desk.admission.windows},
        spend=lambda pool, spent: None,
        tools=tools,
        specs=tools.specs(),
        tokenizer=TOKENIZER,
        encoder=ThreadPoolExecutor(1),
        turnstile=Turnstile(),
        beginning=Beginning(),
        gate=desk.gate,
        records=lines,
        intents=Declared(),
        clock=lambda: asyncio.get_running_loop().time(),
    )


def configured(services: Services, **changes: Any) -> Services:
    """The same under another configuration."""
    return replace(services, config=replace(services.config, **changes))


def started(services: Services, spec: AgentSpec = SPEC) -> tuple[Rollout, asyncio.Task[Outcome]]:
    rollout = Rollout(spec, services)
    return rollout, asyncio.create_task(rollout.run())


async def play(
    *lines: Said, adjust: Callable[[Services], Services] = lambda services: services, **limits: Any
) -> tuple[Ending, dict[str, Any], Lines, SayingEngine]:
    """Play one attempt to its end; whatever the end, its place must be free again."""
    desk, rows, engine = Desk(), Lines(), SayingEngine(*lines)
    ending, row = await Rollout(SPEC, adjust(make(engine, desk, rows, **limits))).run()
    assert desk.is_free()
    assert row["turns"] == len(rows.rows("turns"))
    assert row["tool_calls"] == len(rows.rows("tools"))
    return ending, row, rows, engine
