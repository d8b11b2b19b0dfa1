"""What a host is told at its start. Plain data that crosses from the driver to the hosts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from concur_batch.agent.limits import Budget
from concur_batch.agent.prompting import Format
from concur_batch.control.rules import Rules
from concur_batch.engine.pools import PoolAddress
from concur_batch.workload.schema import Limits, Sampling, SandboxTools, SyntheticTools


@dataclass(frozen=True, slots=True)
class HostConfig:
    """All that a host needs. `directory` is the run's, which every node sees."""

    run: str
    name: str
    directory: Path
    started_at: float  # wall clock of the run's first start, whose date is what a chat template may tell
    zero_at: float  # wall clock at which the run's seconds begin, to align this process's monotonic clock with
    pools: tuple[PoolAddress, ...]
    request_seconds: float
    retries: int
    tools: SandboxTools | SyntheticTools
    format: Format
    system: str
    sampling: Sampling
    limits: Limits
    attempts: int
    context_tokens: int  # the engine's or the workload's limit, whichever is smaller
    seed: int
    rules: Rules
    kv_budget_tokens: int | None
    deadline_seconds: float | None  # of every agent, since the run's start
    hosts_on_node: int  # which share its sandboxes
    life: int = 0  # of the run: each resume begins another
    priorities: bool = False  # requests carry their task's
    sessions: bool = False  # requests name their agent

    @property
    def chats(self) -> bool:
        """Whether the engine takes messages instead of token ids."""
        return any(pool.kind == "openai" for pool in self.pools)

    @property
    def tokenizer_directory(self) -> Path:
        """The run's own copy."""
        return self.directory / "model"

    @property
    def workspaces(self) -> Path:
        """Where the tools keep the agents' files."""
        return self.directory / "workspaces"

    @property
    def keep_workspaces(self) -> bool:
        """Whether workspaces stay behind when their agents have ended."""
        return isinstance(self.tools, SandboxTools) and self.tools.keep_workspaces

    def budget(self, deadline_seconds: float | None) -> Budget:
        """What bounds an agent that has this deadline of its own; the nearer one counts."""
        deadlines = (deadline_seconds, self.deadline_seconds)
        return Budget(
            self.limits,
            self.sampling.max_tokens,
            self.context_tokens,
            self.kv_budget_tokens,
            min((seconds for seconds in deadlines if seconds is not None), default=None),
        )
