"""workload.yaml: what to run, on which engine, with which tools, under which control. Every field is documented here.

Relative paths are relative to the workload file. `concur schema` prints this as JSON Schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A block of the workload: unknown keys are errors, values are never coerced across kinds, frozen once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, validate_default=True)


Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Tasks(Section):
    """Where the tasks are and how a row becomes a prompt."""

    file: Path = Field(description="JSONL, Parquet or CSV file, one task a row, told by its suffix.")
    prompt: str = Field(description="Jinja2 template of the first user message, over the row's columns.")
    id: str = Field("id", description="Column with the task's unique name; without one, the row number is used.")
    files: str | None = Field(
        None, description="Column with the files to put into the workspace: an object from path to text."
    )
    samples: Count = Field(1, description="Agents per task, each with a seed of its own.")
    limit: Count | None = Field(None, description="Take only the first so many tasks.")
    seed: int = Field(0, ge=0, description="From which every agent's sampling seed is derived.")


class Sampling(Section):
    """How the model samples; `extra` goes to the engine's sampling parameters verbatim."""

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1, description="-1: off.")
    max_tokens: Count = Field(1024, description="Output tokens per turn, at most.")
    stop: list[str] = Field(default_factory=list, description="Strings that end a turn, beside the model's own end.")
    logprobs: bool = Field(False, description="Store the log probability of every sampled token.")
    extra: dict[str, Any] = Field(default_factory=dict)


class Model(Section):
    name: str = Field(description="The name under which the engine serves the model.")
    tokenizer: Path = Field(
        description="Directory with tokenizer.json and the chat template, as on the Hugging Face hub."
    )
    sampling: Sampling = Field(default_factory=Sampling)


class Launch(Section):
    """Start the engine for the run and stop it afterwards."""

    python: Path = Field(description="Interpreter of the environment in which the engine is installed.")
    model: Path = Field(description="Model directory.")
    args: list[str] = Field(default_factory=list, description="More arguments, passed through verbatim.")
    env: dict[str, str] = Field(default_factory=dict)
    ready_seconds: Seconds = Field(600, description="How long it may take until it serves.")


class SglangEngine(Section):
    """A real SGLang server: one that runs (`url`), or one to launch."""

    kind: Literal["sglang"]
    url: str | None = Field(None, pattern=r"^https?://", description="For instance http://gpu-7:30000")
    api_key: str | None = Field(None, description="Name of the environment variable that holds the key.")
    launch: Launch | None = None
    request_seconds: Seconds = Field(3600, description="Longest that one generation may take, queueing included.")
    retries: int = Field(4, ge=0, description="Times to send a failed generation again, with growing waits.")

    @model_validator(mode="after")
    def _one_source(self) -> SglangEngine:
        if (self.url is None) == (self.launch is None):
            raise ValueError("needs exactly one of `url` (a server that runs) and `launch` (one to start)")
        return self


class Cost(Section):
    """Seconds that the simulated engine takes, in simulated time. The default is illustrative, not a GPU's."""

    prefill_seconds_per_token: float = Field(2.0e-4, ge=0)
    prefill_seconds_per_token_pair: float = Field(0.0, ge=0, description="Attention: per new token and context token.")
    decode_step_seconds: float = Field(0.02, ge=0)
    decode_seconds_per_request: float = Field(2.0e-4, ge=0)
    decode_seconds_per_kv_token: float = Field(1.0e-7, ge=0)


class SyntheticScript(Section):
    """A load without a script: every agent calls `work` for a seeded number of turns, then submits."""

    turns: tuple[Count, Count] = (5, 5)
    output_words: tuple[Count, Count] = (8, 24)


class SimulatedEngine(Section):
    """Our simulation of an SGLang-like engine; scripted agents say what the model would. Its figures are simulated."""

    kind: Literal["simulated"]
    script: Path | None = Field(None, description="JSONL of scripts, one a task.")
    synthetic: SyntheticScript | None = None
    pool_tokens: Count = Field(32_768, description="KV pool.")
    page_size: Count = 1
    context_tokens: Count = Field(32_768, description="Longest context of the simulated model.")
    max_running_requests: Count = 256
    chunked_prefill_tokens: Count = 8192
    time_scale: float = Field(1.0, gt=0, description="Simulated seconds per real second.")
    cost: Cost = Field(default_factory=Cost)

    @model_validator(mode="after")
    def _one_source(self) -> SimulatedEngine:
        if (self.script is None) == (self.synthetic is None):
            raise ValueError("needs exactly one of `script` and `synthetic`")
        return self


class Limits(Section):
    """When an agent ends though it has not submitted: a clean end with status `limit`, not a failure."""

    turns: Count = 50
    context_tokens: Count | None = Field(None, description="Default: the engine's context length.")
    output_tokens: Count | None = Field(None, description="Sampled tokens over all turns.")
    active_seconds: Seconds | None = Field(None, description="Generation and tools; pauses and queues do not count.")
    wall_seconds: Seconds | None = Field(None, description="Everything since the first admission.")
    malformed: Count = Field(3, description="Malformed actions in a row after which the agent fails.")


class Agent(Section):
    format: Literal["react", "hermes", "bash"] = Field(
        "hermes",
        description="react: Thought/Action/Action Input lines; hermes: <tool_call> JSON; bash: one fenced block.",
    )
    system: str = Field("", description="System prompt.")
    system_file: Path | None = Field(None, description="File with the system prompt, instead of `system`.")
    limits: Limits = Field(default_factory=Limits)
    hosts: Count | None = Field(
        None, description="AgentHost actors; default: one for 2,000 agents, at least one a node."
    )
    attempts: Count = Field(3, description="Times an agent may be started when infrastructure fails it.")

    @model_validator(mode="after")
    def _one_prompt(self) -> Agent:
        if self.system and self.system_file is not None:
            raise ValueError("give `system` or `system_file`, not both")
        return self


ToolName = Literal["bash", "python", "read_file", "write_file", "edit_file", "list_files", "search_files", "submit"]


class SandboxTools(Section):
    """Real tools; every agent has a workspace of its own and every command runs in bubblewrap, without network."""

    kind: Literal["sandbox"] = "sandbox"
    names: list[ToolName] = Field(
        default=[
            "bash",
            "python",
            "read_file",
            "write_file",
            "edit_file",
            "list_files",
            "search_files",
            "submit",
        ],
        min_length=1,
    )
    deadline_seconds: Seconds = Field(60, description="After which a call is killed.")
    output_limit_bytes: Count = Field(16_384, description="Longest observation; the middle of a longer one is dropped.")
    memory_limit_bytes: Count = 2 * 1024**3
    process_limit: Count = 256
    max_running: Count | None = Field(None, description="Sandboxed commands at once on a node; default: 4 per core.")
    keep_workspaces: bool = Field(False, description="Keep every agent's files in the run directory.")


class SyntheticTools(Section):
    """A stand-in for load tests: `work` waits a seeded time and returns seeded words."""

    kind: Literal["synthetic"]
    wait_seconds: tuple[float, float] = (0.0, 0.0)
    observation_words: tuple[Count, Count] = (20, 20)


class NoControl(Section):
    """Every agent may generate whenever it wants."""

    policy: Literal["none"]
    period_seconds: Seconds = 1.0


class RequestCap(Section):
    """A fixed number of generations in flight; an agent's place ends with each generation."""

    policy: Literal["request_cap"]
    cap: Count
    period_seconds: Seconds = 1.0


class AgentCap(Section):
    """A fixed number of agents, each from its admission to its end."""

    policy: Literal["agent_cap"]
    cap: Count
    period_seconds: Seconds = 1.0


class Concur(Section):
    """The paper's law. What the paper leaves open is named here, and goes into the manifest."""

    policy: Literal["concur"]
    alpha: Count = 2
    beta: float = Field(0.5, gt=0, lt=1)
    u_low: Share = 0.2
    u_high: Share = 0.5
    h_thresh: Share = 0.2
    period_seconds: Seconds = Field(1.0, description="Open in the paper.")
    initial_window: Count = Field(16, description="Open in the paper.")
    min_window: Count = Field(1, description="Ours: floor(W * beta) would reach 0.")
    max_window: Count | None = Field(None, description="Default: the number of agents.")
    smoothing: Literal["none", "mean"] = Field(
        "none",
        description="Of U over a period's samples. H is a quotient of the whole period's counters already.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Concur:
        if self.u_low > self.u_high:
            raise ValueError("`u_low` must not be above `u_high`")
        if self.max_window is not None and self.max_window < self.min_window:
            raise ValueError("`max_window` must not be below `min_window`")
        return self


class VerifyCommand(Section):
    """Run a command in the agent's workspace after its end: exit 0 is reward 1, or a last line `reward: 0.25`."""

    kind: Literal["command"]
    column: str = Field("check", description="Column with {command, files}; tasks without one have no reward from it.")
    deadline_seconds: Seconds = 120


class VerifyAnswer(Section):
    """Compare the submitted answer with a column."""

    kind: Literal["answer"]
    column: str = "answer"
    match: Literal["exact", "number", "regex"] = "exact"
    match_column: str | None = Field(None, description="Column that names the match for each task instead.")


class Workload(Section):
    """A whole workload."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Names the run directory.")
    tasks: Tasks
    model: Model
    engine: Annotated[SglangEngine | SimulatedEngine, Field(discriminator="kind")]
    agent: Agent = Field(default_factory=Agent)
    tools: Annotated[SandboxTools | SyntheticTools, Field(discriminator="kind")] = Field(default_factory=SandboxTools)
    control: Annotated[NoControl | RequestCap | AgentCap | Concur, Field(discriminator="policy")] = Field(
        default_factory=lambda: Concur(policy="concur")
    )
    verify: list[Annotated[VerifyCommand | VerifyAnswer, Field(discriminator="kind")]] = Field(
        default_factory=list,
        description="Checks of the result; the first that applies to a task gives the reward.",
    )
    output: Path = Field(
        Path("runs"),
        description="Directory under which the run's own directory is made; relative to the current directory.",
    )
