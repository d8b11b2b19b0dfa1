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
    """All that a host needs. Directories lie in the run directory, which every node sees."""

    run: str
    name: str
    started_at: float  # wall clock of the run's start, to align this process's monotonic clock with
    pools: tuple[PoolAddress, ...]
    request_seconds: float
    retries: int
    tokenizer_directory: Path
    workspaces: Path
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
    priorities: bool = False  # requests carry their task's
    sessions: bool = False  # requests name their agent

    @property
    def chats(self) -> bool:
        """Whether the engine takes messages instead of token ids."""
        return any(pool.kind == "openai" for pool in self.pools)

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
