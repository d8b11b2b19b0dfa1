"""workload.yaml: what to run, on which engine, with which tools, under which control. Every field is documented here.

Relative paths are relative to the workload file. `concur schema` prints this as JSON Schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A block of the workload: unknown keys are errors, values are never coerced across kinds, frozen once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, validate_default=True, allow_inf_nan=False)


Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


def _in_order(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] > span[1]:
        raise ValueError(f"the least, {span[0]}, is above the most, {span[1]}; give [least, most]")
    return span


def _log_uniform(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] == 0 != span[1]:
        raise ValueError("the least wait is 0 and the most is not; give [0, 0] for none, or a least above 0")
    return _in_order(span)


Wait = Annotated[float, Field(ge=0)]
Span = Annotated[tuple[Count, Count], AfterValidator(_in_order)]
AnswerMatch = Literal["exact", "number", "regex"]


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

    temperature: float = Field(1.0, ge=0, description="0: greedy.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Sample from the likeliest tokens which make up this share; 1: off."
    )
    top_k: int = Field(-1, ge=-1, description="Sample from so many of the likeliest tokens; -1: off.")
    max_tokens: Count = Field(1024, description="Output tokens per turn, at most.")
    stop: list[str] = Field(default_factory=list, description="Strings that end a turn, beside the model's own end.")
    logprobs: bool = Field(False, description="Store the log probability of every sampled token.")
    extra: dict[str, Any] = Field(default_factory=dict, description="More sampling parameters of the engine, verbatim.")


class Model(Section):
    """The model, as the engine serves it."""

    name: str = Field(description="The name under which the engine serves the model.")
    tokenizer: Path = Field(
        description="Directory with tokenizer.json and the chat template, as on the Hugging Face hub."
    )
    sampling: Sampling = Field(default_factory=Sampling, description="How it samples.")


class Launch(Section):
    """Start the engine for the run and stop it afterwards."""

    python: Path = Field(description="Interpreter of the environment in which the engine is installed.")
    model: Path = Field(description="Model directory.")
    args: list[str] = Field(default_factory=list, description="More arguments, passed through verbatim.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables for the engine.")
    ready_seconds: Seconds = Field(600, description="How long it may take until it serves.")


class SglangEngine(Section):
    """A real SGLang server: one that runs (`url`), or one to launch."""

    kind: Literal["sglang"] = Field(description="A real SGLang server.")
    url: str | None = Field(
        None, pattern=r"^https?://", description="Where the server runs, for instance http://gpu-7:30000"
    )
    api_key: str | None = Field(None, description="Name of the environment variable that holds the key.")
    launch: Launch | None = Field(None, description="Start the server for the run, instead of `url`.")
    request_seconds: Seconds = Field(3600, description="Longest that one generation may take, queueing included.")
    retries: int = Field(4, ge=0, description="Times to send a failed generation again, with growing waits.")

    @model_validator(mode="after")
    def _one_source(self) -> SglangEngine:
        if self.api_key is not None and self.launch is not None:
            raise ValueError("`api_key` is for a server that runs (`url`); remove it")
        if (self.url is None) == (self.launch is None):
            raise ValueError(
                "needs exactly one of `url` and `launch`; give `url` for a server that runs, or `launch` to start one"
            )
        return self


class Cost(Section):
    """Seconds that the simulated engine takes, in simulated time. The default is illustrative, not a GPU's."""

    prefill_seconds_per_token: float = Field(2.0e-4, ge=0, description="Per new token.")
    prefill_seconds_per_token_pair: float = Field(0.0, ge=0, description="Attention: per new token and context token.")
    decode_step_seconds: float = Field(0.02, ge=0, description="Per decode step, whatever the batch.")
    decode_seconds_per_request: float = Field(2.0e-4, ge=0, description="Per decode step and running request.")
    decode_seconds_per_kv_token: float = Field(1.0e-7, ge=0, description="Per decode step and token of context.")


class SyntheticScript(Section):
    """A load without a script: every agent calls `work` for a seeded number of turns, then submits."""

    turns: Span = Field((5, 5), description="[least, most] turns of an agent.")
    output_words: Span = Field((8, 24), description="[least, most] words that a turn generates.")


class SimulatedEngine(Section):
    """Our simulation of an SGLang-like engine; scripted agents say what the model would. Its figures are simulated."""

    kind: Literal["simulated"] = Field(description="Our simulation of one.")
    script: Path | None = Field(None, description="JSONL of scripts, one a task.")
    synthetic: SyntheticScript | None = Field(None, description="A load without a script, instead of `script`.")
    pool_tokens: Count = Field(32_768, description="Tokens that the KV pool holds.")
    page_size: Count = Field(1, description="Tokens per page of the pool.")
    context_tokens: Count = Field(32_768, description="Longest context of the simulated model.")
    max_running_requests: Count = Field(256, description="Requests in the running batch, at most.")
    chunked_prefill_tokens: Count = Field(8192, description="Prompt tokens that one prefill step computes, at most.")
    time_scale: float = Field(1.0, gt=0, description="Simulated seconds per real second.")
    cost: Cost = Field(default_factory=Cost, description="What the simulated work takes.")

    @model_validator(mode="after")
    def _one_source(self) -> SimulatedEngine:
        if (self.script is None) == (self.synthetic is None):
            raise ValueError(
                "needs exactly one of `script` and `synthetic`; give `synthetic: {}` for a load without a script"
            )
        return self


class Limits(Section):
    """When an agent ends though it has not submitted: a clean end with status `limit`, not a failure."""

    turns: Count = Field(50, description="Generations.")
    context_tokens: Count | None = Field(None, description="Default: the engine's context length.")
    output_tokens: Count | None = Field(None, description="Sampled tokens over all turns.")
    active_seconds: Seconds | None = Field(None, description="Generation and tools; pauses and queues do not count.")
    wall_seconds: Seconds | None = Field(None, description="Everything since the first admission.")
    malformed: Count = Field(3, description="Malformed actions in a row after which the agent fails.")


class Agent(Section):
    """How an agent acts, and when it ends."""

    format: Literal["react", "hermes", "bash"] = Field(
        "hermes",
        description="react: Thought/Action/Action Input lines; hermes: <tool_call> JSON; bash: one fenced block.",
    )
    system: str = Field("", description="System prompt.")
    system_file: Path | None = Field(None, description="File with the system prompt, instead of `system`.")
    limits: Limits = Field(default_factory=Limits, description="When an agent ends without having submitted.")
    hosts: Count | None = Field(
        None, description="AgentHost actors; default: one for 2,000 agents, at least one a node."
    )
    attempts: Count = Field(3, description="Times an agent may be started when infrastructure fails it.")

    @model_validator(mode="after")
    def _one_prompt(self) -> Agent:
        if self.system and self.system_file is not None:
            raise ValueError("has both `system` and `system_file`; keep one")
        return self


ToolName = Literal["bash", "python", "read_file", "write_file", "edit_file", "list_files", "search_files", "submit"]


class SandboxTools(Section):
    """Real tools; every agent has a workspace of its own and every command runs in bubblewrap, without network."""

    kind: Literal["sandbox"] = Field("sandbox", description="Real tools.")
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
        description="The tools that the model is offered.",
    )
    deadline_seconds: Seconds = Field(60, description="After which a call is killed.")
    output_limit_bytes: Count = Field(16_384, description="Longest observation; the middle of a longer one is dropped.")
    memory_limit_bytes: Count = Field(2 * 1024**3, description="Memory of one command and what it starts.")
    process_limit: Count = Field(256, description="Processes of one command, itself included.")
    max_running: Count | None = Field(None, description="Sandboxed commands at once on a node; default: 3 per core.")
    keep_workspaces: bool = Field(False, description="Keep every agent's files in the run directory.")


class SyntheticTools(Section):
    """A stand-in for load tests: `work` waits a seeded time and returns seeded words."""

    kind: Literal["synthetic"] = Field(description="A stand-in.")
    wait_seconds: Annotated[tuple[Wait, Wait], AfterValidator(_log_uniform)] = Field(
        (0.0, 0.0), description="[least, most] seconds of a call, log-uniform between them."
    )
    observation_words: Span = Field((20, 20), description="[least, most] words that a call returns.")


class NoControl(Section):
    """Every agent may generate whenever it wants."""

    policy: Literal["none"] = Field(description="No control.")
    period_seconds: Seconds = Field(1.0, description="Between two samples of the engine's signals.")


class RequestCap(Section):
    """A fixed number of generations in flight; an agent's place ends with each generation."""

    policy: Literal["request_cap"] = Field(description="The baseline that caps requests.")
    cap: Count = Field(description="Generations in flight.")
    period_seconds: Seconds = Field(1.0, description="Between two samples of the engine's signals.")


class AgentCap(Section):
    """A fixed number of agents, each from its admission to its end."""

    policy: Literal["agent_cap"] = Field(description="The baseline that caps agents.")
    cap: Count = Field(description="Active agents.")
    period_seconds: Seconds = Field(1.0, description="Between two samples of the engine's signals.")


class Concur(Section):
    """The paper's law. What the paper leaves open is named here, and goes into the manifest."""

    policy: Literal["concur"] = Field(description="CONCUR.")
    alpha: Count = Field(2, description="Agents added to the window when the pool is underused.")
    beta: float = Field(0.5, gt=0, lt=1, description="Factor of a cut of the window.")
    u_low: Share = Field(0.2, description="Grow when the pool's usage U is below.")
    u_high: Share = Field(0.5, description="Cut when U is above and H is below `h_thresh`.")
    h_thresh: Share = Field(0.2, description="Share of prefix hits H, below which U above `u_high` is a cut.")
    period_seconds: Seconds = Field(1.0, description="Between two decisions. Open in the paper.")
    initial_window: Count = Field(16, description="Agents admitted at first. Open in the paper.")
    min_window: Count = Field(1, description="Least window. Ours: floor(W * beta) would reach 0.")
    max_window: Count | None = Field(None, description="Largest window; default: the number of agents.")
    smoothing: Literal["none", "mean"] = Field(
        "none",
        description="Of U over a period's samples. H is a quotient of the whole period's counters already.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Concur:
        if self.u_low > self.u_high:
            raise ValueError(f"u_low {self.u_low} is above u_high {self.u_high}; give u_low <= u_high")
        if self.max_window is not None and self.max_window < self.min_window:
            raise ValueError(f"max_window {self.max_window} is below min_window {self.min_window}; raise max_window")
        return self


class VerifyCommand(Section):
    """Run a command in the agent's workspace after its end: exit 0 is reward 1, or a last line `reward: 0.25`."""

    kind: Literal["command"] = Field(description="By a command.")
    column: str = Field("check", description="Column with {command, files}; tasks without one have no reward from it.")
    deadline_seconds: Seconds = Field(120, description="After which the command is killed, without a reward.")


class VerifyAnswer(Section):
    """Compare the submitted answer with a column."""

    kind: Literal["answer"] = Field(description="By comparison.")
    column: str = Field("answer", description="Column with the answer; tasks without one have no reward from it.")
    match: AnswerMatch = Field("exact", description="How the two are compared.")
    match_column: str | None = Field(None, description="Column that names the match for each task instead.")


Verify = Annotated[VerifyCommand | VerifyAnswer, Field(discriminator="kind")]


class Workload(Section):
    """A whole workload."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Names the run directory.")
    tasks: Tasks = Field(description="What the agents are to do.")
    model: Model = Field(description="Which model acts.")
    engine: Annotated[SglangEngine | SimulatedEngine, Field(discriminator="kind")] = Field(
        description="What generates."
    )
    agent: Agent = Field(default_factory=Agent, description="How an agent acts.")
    tools: Annotated[SandboxTools | SyntheticTools, Field(discriminator="kind")] = Field(
        default_factory=SandboxTools, description="What an agent can do."
    )
    control: Annotated[NoControl | RequestCap | AgentCap | Concur, Field(discriminator="policy")] = Field(
        default_factory=lambda: Concur(policy="concur"), description="Who may generate when."
    )
    verify: list[Verify] = Field(
        default_factory=list,
        description="Checks of the result; the first that applies to a task gives the reward.",
    )
    output: Path = Field(
        Path("runs"),
        validate_default=False,  # a Path is no JSON, and the workload is read as JSON
        description="Directory under which the run's own directory is made; relative to the current directory.",
    )
