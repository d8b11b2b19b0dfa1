"""workload.yaml: what to run, on which engine, with which tools, under which control. Every field is documented here.

Relative paths are relative to the workload file. `concur schema` prints this as JSON Schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

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


def _object_store(uri: str) -> str:
    scheme, mark, rest = uri.partition("://")
    if not mark or not scheme:
        raise ValueError(f"{uri!r} is no URI; give one as s3://bucket/prefix or file:///directory")
    if "@" in rest.split("/")[0]:
        raise ValueError("holds credentials, which the manifest would show; put them into the environment")
    return uri


Wait = Annotated[float, Field(ge=0)]
Span = Annotated[tuple[Count, Count], AfterValidator(_in_order)]
AnswerMatch = Literal["exact", "number", "regex"]
Weight = Annotated[float, Field(gt=0)]
VictimOrder = Literal["newest", "oldest", "largest", "smallest", "longest_idle"]
ResumeOrder = Literal["oldest", "newest", "smallest", "largest"]


class Tasks(Section):
    """Where the tasks are and how a row becomes a prompt."""

    file: Path = Field(description="JSONL, Parquet or CSV file, one task a row, told by its suffix.")
    prompt: str = Field(description="Jinja2 template of the first user message, over the row's columns.")
    id: str = Field("id", description="Column with the task's unique name; without one, the row number is used.")
    files: str | None = Field(
        None, description="Column with the files to put into the workspace: an object from path to text."
    )
    group: str | None = Field(
        None, description="Column that names the task's group; groups share the window fairly (`control.extensions`)."
    )
    priority: str | None = Field(None, description="Column with a whole number: higher ones are admitted first.")
    deadline: str | None = Field(
        None,
        description="Column with seconds since the run's start: an agent that is not done by then ends (`limit`); the "
        "nearest deadline is admitted first.",
    )
    samples: Count = Field(1, description="Agents per task, each with a seed of its own.")
    limit: Count | None = Field(None, description="Take only the first so many tasks.")
    seed: int = Field(0, ge=0, description="From which every agent's sampling seed is derived.")


class Trajectories(Section):
    """What agents do, drawn from distributions: uniform, tool times log-uniform. The seed decides everything."""

    turns: Span = Field((8, 8), description="[least, most] turns of an agent.")
    shared_tokens: int = Field(200, ge=0, description="Tokens with which every prompt begins, as a system prompt.")
    prompt_tokens: Span = Field((100, 200), description="[least, most] tokens of an agent's own prompt after those.")
    output_tokens: Span = Field((8, 16), description="[least, most] tokens that a turn generates.")
    observation_tokens: Span = Field((80, 200), description="[least, most] tokens that a tool returns.")
    tool_seconds: Annotated[tuple[Wait, Wait], AfterValidator(_log_uniform)] = Field(
        (0.2, 2.0), description="[least, most] seconds that a tool takes."
    )
    seed: int = Field(0, ge=0, description="From which all is drawn.")


class Synthetic(Trajectories):
    """Trajectories drawn from distributions, for so many agents."""

    agents: Count = Field(description="How many agents.")


class Replay(Section):
    """Trajectories that are decided beforehand, to compare policies and engines on the same work: output lengths are
    forced, observations and tool times are as recorded, and histories go on with the ids that the engine makes."""

    run: Path | None = Field(None, description="A run's directory: its agents are replayed.")
    file: Path | None = Field(None, description="A file that `concur replay-from` has made, instead of `run`.")
    synthetic: Synthetic | None = Field(None, description="Drawn trajectories, instead of `run`.")
    limit: Count | None = Field(None, description="Replay only the first so many agents.")

    @model_validator(mode="after")
    def _one_source(self) -> Replay:
        if sum(source is not None for source in (self.run, self.file, self.synthetic)) != 1:
            raise ValueError("needs exactly one of `run`, `file` and `synthetic`; give `run` to replay a recorded run")
        return self


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
    """Start the engine for the run, start it again when it dies, and stop it afterwards."""

    python: Path = Field(description="Interpreter of the environment in which the engine is installed.")
    model: Path = Field(description="Model directory.")
    replicas: Count = Field(1, description="Servers to start, each with GPUs of its own.")
    nodes: Count = Field(1, description="Nodes of the cluster that the ranks of a server span, each with its share.")
    tp: Count = Field(1, description="Tensor-parallel ranks of a server.")
    dp: Count = Field(1, description="Data-parallel ranks of a server, each with a KV pool of its own.")
    gpus: int | None = Field(
        None, ge=0, description="GPUs of a server, on all its nodes; default: tp × dp, or 0 where the cluster has none."
    )
    args: list[str] = Field(default_factory=list, description="More arguments, passed through verbatim.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables for the engine.")
    ready_seconds: Seconds = Field(600, description="How long it may take until it serves.")

    @model_validator(mode="after")
    def _even_nodes(self) -> Self:
        ranks, what = (self.tp * self.dp, "tp × dp") if self.gpus is None else (self.gpus, "gpus")
        if ranks % self.nodes:
            raise ValueError(
                f"{ranks} ({what}) cannot be shared evenly by {self.nodes} nodes; give `nodes` that divide it"
            )
        return self


class HiCache(Section):
    """SGLang's KV cache in host memory, behind the one on the device."""

    ratio: float | None = Field(None, gt=0, description="Its size in device pools; default: SGLang's.")
    size_gb: Count | None = Field(None, description="Its size in gigabytes a rank, instead of `ratio`.")
    write_policy: Literal["write_through", "write_through_selective", "write_back"] = Field(
        "write_through", description="When what is on the device is copied: at once, at the second hit, or at eviction."
    )

    @model_validator(mode="after")
    def _one_size(self) -> HiCache:
        if self.ratio is not None and self.size_gb is not None:
            raise ValueError("has both `ratio` and `size_gb`; keep one")
        return self


class SglangLaunch(Launch):
    """How SGLang is started."""

    hicache: HiCache | None = Field(None, description="Keep evicted prefixes in host memory; off unless it is given.")


class ServerEngine(Section):
    """A real server that runs."""

    kind: Literal["sglang", "vllm", "openai"]
    url: str | None = Field(
        None, pattern=r"^https?://", description="Where the server runs, for instance http://gpu-7:30000"
    )
    urls: list[Annotated[str, Field(pattern=r"^https?://")]] = Field(
        default_factory=list, description="Several replicas of the same server, instead of `url`."
    )
    api_key: str | None = Field(None, description="Name of the environment variable that holds the key.")
    request_seconds: Seconds = Field(3600, description="Longest that one generation may take, queueing included.")
    retries: int = Field(4, ge=0, description="Times to send a failed generation again, with growing waits.")

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if len(set(self.urls)) != len(self.urls):
            raise ValueError("`urls` names a replica twice; name each once")
        return self


class LaunchedEngine(ServerEngine):
    """A real server: one that runs (`url`), or one to launch."""

    kind: Literal["sglang", "vllm"]
    launch: Launch | None = Field(None, description="Start the server for the run, instead of `url`.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.api_key is not None and self.launch is not None:
            raise ValueError("`api_key` is for a server that runs (`url`); remove it")
        if sum((self.url is not None, bool(self.urls), self.launch is not None)) != 1:
            raise ValueError(
                "needs exactly one of `url`, `urls` and `launch`; give `url` for a server that runs, `urls` for "
                "several replicas, or `launch` to start one"
            )
        return self


class SglangEngine(LaunchedEngine):
    """A real SGLang server: one that runs (`url`), or one to launch."""

    kind: Literal["sglang"] = Field(description="A real SGLang server.")
    launch: SglangLaunch | None = Field(None, description="Start the server for the run, instead of `url`.")
    priorities: bool = Field(
        False,
        description="Each request carries its task's priority: the server runs with `--enable-priority-scheduling`.",
    )
    sessions: bool = Field(
        False,
        description="Each request names its agent, whose prefix then outlives those of agents that have ended: the "
        "server runs with `--enable-session-radix-cache`.",
    )


class VllmEngine(LaunchedEngine):
    """A real vLLM server: one that runs (`url`) with `--enable-prompt-tokens-details`, or one to launch."""

    kind: Literal["vllm"] = Field(description="A real vLLM server.")


class OpenaiEngine(ServerEngine):
    """Any server with OpenAI's chat completions, asked for `model.name`. It tells no signals and takes no token ids."""

    kind: Literal["openai"] = Field(description="Any server of OpenAI's chat completions.")
    pool_tokens: Count | None = Field(
        None, description="Tokens that a server's KV pool holds, if you know it: U is then estimated."
    )

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.url is not None) == bool(self.urls):
            raise ValueError("needs exactly one of `url` and `urls`; give `urls` for several replicas")
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
    replicas: Count = Field(1, description="Servers, each with `dp_size` pools of its own.")
    dp_size: Count = Field(1, description="Data-parallel ranks of a server, each with a pool of its own.")
    page_size: Count = Field(1, description="Tokens per page of the pool.")
    context_tokens: Count = Field(32_768, description="Longest context of the simulated model.")
    max_running_requests: Count = Field(256, description="Requests in the running batch, at most.")
    chunked_prefill_tokens: Count = Field(8192, description="Prompt tokens that one prefill step computes, at most.")
    sessions: bool = Field(
        False, description="Each request names its agent, whose prefix then outlives those of agents that have ended."
    )
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


class Extensions(Section):
    """Rules beyond the paper's. Each is off unless it is set."""

    longest_pause_seconds: Seconds | None = Field(
        None, description="A pause ends after so long, with or without a free place."
    )
    longest_tool_wait_seconds: Seconds | None = Field(
        None, description="A tool wait beyond this gives the place up; the agent asks again on its return."
    )
    kv_budget_tokens: Count | None = Field(None, description="An agent whose history grows beyond it ends (`limit`).")
    deadline_seconds: Seconds | None = Field(
        None, description="Since the run's start: an agent that is not done by then ends (`limit`)."
    )
    long_request_tokens: Count | None = Field(
        None,
        description="An admitted agent whose next prompt brings more new tokens than this asks again; and everybody is "
        "let in only while the histories fit the pool.",
    )
    growth_turns: Count | None = Field(
        None, description="Admit only while all histories fit the pool as they will be so many turns from now."
    )
    room_share: Share = Field(
        0.9, description="Share of the pool that histories may fill, for `long_request_tokens` and `growth_turns`."
    )
    shares: dict[str, Weight] = Field(
        default_factory=dict, description="Weights of the groups that `tasks.group` names; 1 for one not listed."
    )


class Control(Section):
    """What all policies have in common: how often to look, and whom to choose."""

    period_seconds: Seconds = Field(1.0, description="Between two samples of the engine's signals. Open in the paper.")
    victim_order: VictimOrder = Field(
        "newest",
        description="Whom to pause first: by admission, by length of history, or by time in tool wait. Open in the "
        "paper.",
    )
    resume_order: ResumeOrder = Field(
        "oldest", description="Which of the paused to resume first: by time of pause, or by length. Open in the paper."
    )
    resume_age_seconds: Seconds | None = Field(
        None, description="Whoever has waited so long goes first, before any order, priority or share."
    )
    max_consecutive_pauses: Count | None = Field(
        None, description="Cuts in a row that may pause the same agent, as long as others can be paused."
    )
    move_evicted_share: Share = Field(
        0.5,
        description="Several pools: a paused agent's prefix is believed gone, and it may resume elsewhere, once its "
        "pool has evicted this share of its size since the agent's last turn.",
    )
    extensions: Extensions = Field(default_factory=Extensions, description="Rules beyond the paper's.")


class NoControl(Control):
    """Every agent may generate whenever it wants."""

    policy: Literal["none"] = Field(description="No control.")


class RequestCap(Control):
    """A fixed number of generations in flight in each KV pool; an agent's place ends with each generation."""

    policy: Literal["request_cap"] = Field(description="The baseline that caps requests.")
    cap: Count = Field(description="Generations in flight in a pool.")


class AgentCap(Control):
    """A fixed number of agents in each KV pool, each from its admission to its end."""

    policy: Literal["agent_cap"] = Field(description="The baseline that caps agents.")
    cap: Count = Field(description="Active agents in a pool.")


class Concur(Control):
    """The paper's law. What the paper leaves open is named here, and goes into the manifest."""

    policy: Literal["concur"] = Field(description="CONCUR.")
    alpha: Count = Field(2, description="Agents added to the window when the pool is underused.")
    beta: float = Field(0.5, gt=0, lt=1, description="Factor of a cut of the window.")
    u_low: Share = Field(0.2, description="Grow when the pool's usage U is below.")
    u_high: Share = Field(0.5, description="Cut when U is above and H is below `h_thresh`.")
    h_thresh: Share = Field(0.2, description="Share of prefix hits H, below which U above `u_high` is a cut.")
    initial_window: Count = Field(16, description="Agents admitted at first, in each pool. Open in the paper.")
    min_window: Count = Field(1, description="Least window. Ours: floor(W * beta) would reach 0.")
    max_window: Count | None = Field(None, description="Largest window; default: the number of agents.")
    smoothing: Literal["none", "mean", "ewma"] = Field(
        "none",
        description="none: U at the period's end. mean: U as the mean of four readings in the period. ewma: U and H "
        "averaged over periods, the newest weighing `ewma_weight`. H spans the whole period in any case.",
    )
    ewma_weight: float = Field(0.3, gt=0, le=1, description="Weight of the newest period with `smoothing: ewma`.")
    grow_only_when_binding: bool = Field(False, description="Grow only while agents wait for a place.")
    grow_only_when_served: bool = Field(
        False,
        description="While agents generate, grow only if the engine shows it: one that fails every request, or whose "
        "gauges lag behind a long prefill, looks idle.",
    )
    cut_cooldown_seconds: Seconds | None = Field(
        None,
        description="One cut a congestion: after a cut W stands still until its pauses have taken effect and so long "
        "has passed.",
    )
    slow_start: bool = Field(
        False, description="Double W instead of adding alpha, until the W that the last cut left is reached."
    )
    remember_collapse: bool = Field(
        False, description="From the W of the last cut on, grow by one agent a period instead of alpha."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.u_low > self.u_high:
            raise ValueError(f"u_low {self.u_low} is above u_high {self.u_high}; give u_low <= u_high")
        if self.max_window is not None and self.max_window < self.min_window:
            raise ValueError(f"max_window {self.max_window} is below min_window {self.min_window}; raise max_window")
        return self


class Steady(Concur):
    """The law with our hygiene: the options of `concur` that mend its known faults, switched on."""

    policy: Literal["steady"] = Field(description="The law, with growth and cuts under hygiene.")  # type: ignore[assignment]
    smoothing: Literal["none", "mean", "ewma"] = Field("mean", description="As in `concur`.")
    grow_only_when_binding: bool = Field(True, description="As in `concur`.")
    grow_only_when_served: bool = Field(True, description="As in `concur`.")
    cut_cooldown_seconds: Seconds | None = Field(5.0, description="As in `concur`.")
    slow_start: bool = Field(True, description="As in `concur`.")
    remember_collapse: bool = Field(True, description="As in `concur`.")
    resume_age_seconds: Seconds | None = Field(60.0, description="As in `concur`.")
    max_consecutive_pauses: Count | None = Field(2, description="As in `concur`.")


class TokenWindow(Control):
    """A window in tokens: as many agents as the pool holds with all that they have in it. Ours."""

    policy: Literal["token_window"] = Field(description="A window in tokens.")
    admit_share: Share = Field(
        0.9,
        description="Let agents in while the histories of those inside, and one more turn of each, fill no more of the "
        "pool; a beginning that all have in common counts once.",
    )
    pause_share: Share = Field(1.0, description="Pause agents while they would fill more.")
    hold_seconds: Seconds | None = Field(
        None,
        description="A tool wait beyond this gives the place up; the agent asks again on its return. Default: learned "
        "from how long tools take and how fast the engine prefills.",
    )
    victim_order: VictimOrder = Field(
        "smallest", description="Whom to pause first: the smallest costs least to bring back."
    )
    initial_window: Count = Field(16, description="Agents in each pool as long as its size is not known.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.admit_share > self.pause_share:
            over = f"admit_share {self.admit_share} is above pause_share {self.pause_share}"
            raise ValueError(f"{over}; give admit_share <= pause_share")
        return self


AnyControl = NoControl | RequestCap | AgentCap | Concur | Steady | TokenWindow


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


class Simulate(Section):
    """The hardware on which `concur simulate` plays this workload; `concur run` does not read it. What is not given is
    taken from `engine` where it tells it."""

    gpu: str | None = Field(
        None, description="GPU of the catalogue: h100, h200, a100, l40s. Needed unless `engine` is simulated."
    )
    model: str | None = Field(
        None,
        description="Model of the catalogue (qwen3-32b, qwen3-8b, deepseek-v3), or a config.json or the directory with "
        "it; default: `engine.launch.model`, or by `model.name`.",
    )
    tp: Count | None = Field(None, description="GPUs that a replica of the model is spread over.")
    nodes: Count | None = Field(None, description="Nodes that they are on.")
    replicas: Count | None = Field(None, description="Replicas of the model, each with a KV pool of its own.")
    mem_fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Share of a GPU's memory for weights and KV; default: by SGLang's rule."
    )
    kv_dtype: Literal["bf16", "fp8"] = Field("bf16", description="Numbers in the KV cache.")
    pool_tokens: Count | None = Field(None, description="Tokens that a KV pool holds; default: what fits the GPUs.")
    page_size: Count | None = Field(None, description="Tokens per page of the pool.")
    hicache: HiCache | None = Field(None, description="Keep evicted prefixes in host memory, over the host link.")
    eviction: Literal["lru", "lfu", "slru", "priority"] = Field("lru", description="Which prefixes go first.")
    schedule: Literal["fcfs", "lpm"] = Field("fcfs", description="Which waiting request goes first.")
    sessions: bool | None = Field(
        None, description="Agents' prefixes outlive those of agents that have ended; default: as `engine.sessions`."
    )
    calibration: Literal["typical", "paper"] = Field(
        "typical", description="Efficiencies and overheads: typical ones, or as fitted to the CONCUR paper's figures."
    )
    load: Trajectories | None = Field(
        None, description="What the agents of `tasks` do, whose lengths nobody knows yet; a replay has its own."
    )


class Workload(Section):
    """A whole workload."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Names the run directory.")
    tasks: Tasks | None = Field(None, description="What the agents are to do.")
    replay: Replay | None = Field(None, description="Trajectories to replay, instead of `tasks`.")
    model: Model = Field(description="Which model acts.")
    engine: Annotated[SglangEngine | VllmEngine | OpenaiEngine | SimulatedEngine, Field(discriminator="kind")] = Field(
        description="What generates."
    )
    agent: Agent = Field(default_factory=Agent, description="How an agent acts.")
    tools: Annotated[SandboxTools | SyntheticTools, Field(discriminator="kind")] = Field(
        default_factory=SandboxTools, description="What an agent can do."
    )
    control: Annotated[AnyControl, Field(discriminator="policy")] = Field(
        default_factory=lambda: TokenWindow(policy="token_window"), description="Who may generate when."
    )
    verify: list[Verify] = Field(
        default_factory=list,
        description="Checks of the result; the first that applies to a task gives the reward.",
    )
    simulate: Simulate | None = Field(None, description="The hardware on which `concur simulate` plays the workload.")
    output: Path = Field(
        Path("runs"),
        validate_default=False,  # a Path is no JSON, and the workload is read as JSON
        description="Directory under which the run's own directory is made; relative to the current directory.",
    )
    storage: Annotated[str, AfterValidator(_object_store)] | None = Field(
        None,
        description="`pyarrow.fs` URI, as `s3://bucket/prefix`, under which the Parquet tables are put instead of into "
        "the run's directory; with it the nodes need no shared disk for them.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        if (self.tasks is None) == (self.replay is None):
            raise ValueError("needs exactly one of `tasks` and `replay`; give `tasks` for agents that act")
        return self

    @property
    def seed(self) -> int:
        """From which all that is drawn is drawn."""
        if self.tasks is not None:
            return self.tasks.seed
        return self.replay.synthetic.seed if self.replay is not None and self.replay.synthetic is not None else 0
