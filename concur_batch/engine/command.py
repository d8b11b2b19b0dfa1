"""The command lines of the servers that are launched. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from concur_batch.workload.schema import HiCache, Launch, LaunchedEngine, SglangEngine, SglangLaunch


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part of a server runs: one of its nodes. `node` counts them; the first one's part takes the requests.

    `host` and `port` are its own; at `meeting`, an address of the first node, the parts of all nodes find each other.
    """

    host: str
    port: int
    node: int = 0
    meeting: tuple[str, int] = ("127.0.0.1", 0)


def server_command(engine: LaunchedEngine, served_name: str, place: Place) -> list[str]:
    """The command line of the part of a server at this place; `engine` has a `launch`.

    The workload's own arguments come last, so that they win. What the signals need is always asked for.
    """
    launch = engine.launch
    assert launch is not None
    described = _sglang(launch) if isinstance(launch, SglangLaunch) else _vllm(launch)
    asked = _asked(engine) if isinstance(engine, SglangEngine) else []
    together = [] if launch.nodes == 1 else _nodes(launch, place)
    address = ["--served-model-name", served_name, "--host", place.host, "--port", str(place.port)]
    return [str(launch.python), "-m", *described, *asked, *together, *address, *launch.args]


def server_env(launch: Launch, place: Place) -> dict[str, str]:
    """What is set in the environment of that part, beside what it inherits. The workload's own variables win."""
    # vLLM guesses by which of its addresses a node is reached from the others: Ray knows it.
    known = {"VLLM_HOST_IP": place.host} if launch.nodes > 1 else {}
    return known | launch.env


def _sglang(launch: SglangLaunch) -> list[str]:
    return [
        *("sglang.launch_server", "--model-path", str(launch.model), "--enable-metrics"),
        *_ranks("--tp-size", launch.tp),
        *_ranks("--dp-size", launch.dp),
        *(() if launch.hicache is None else _hicache(launch.hicache)),
    ]


def _asked(engine: SglangEngine) -> list[str]:
    """What lets a server heed what requests carry."""
    return [
        *(("--enable-priority-scheduling",) if engine.priorities else ()),
        *(("--enable-session-radix-cache",) if engine.sessions else ()),
    ]


def _vllm(launch: Launch) -> list[str]:
    return [
        *("vllm.entrypoints.cli.main", "serve", str(launch.model)),
        *("--enable-prompt-tokens-details", "--enable-per-request-metrics"),
        *_ranks("--tensor-parallel-size", launch.tp),
        *_ranks("--data-parallel-size", launch.dp),
    ]


def _nodes(launch: Launch, place: Place) -> list[str]:
    host, port = place.meeting
    counted = ["--nnodes", str(launch.nodes), "--node-rank", str(place.node)]
    if isinstance(launch, SglangLaunch):
        return [*counted, "--dist-init-addr", f"{host}:{port}"]
    meeting = ["--master-addr", host, "--master-port", str(port)]
    headless = ["--headless"] if place.node > 0 else []
    return [*counted, *meeting, "--distributed-executor-backend", "mp", *headless]


def _ranks(option: str, count: int) -> list[str]:
    return [] if count == 1 else [option, str(count)]


def _hicache(hicache: HiCache) -> list[str]:
    return [
        *("--enable-hierarchical-cache", "--hicache-write-policy", hicache.write_policy),
        *(() if hicache.ratio is None else ("--hicache-ratio", f"{hicache.ratio:g}")),
        *(() if hicache.size_gb is None else ("--hicache-size", str(hicache.size_gb))),
    ]
