"""The command lines of the servers that are launched. Pure."""

from __future__ import annotations

from concur_batch.workload.schema import HiCache, Launch, SglangLaunch


def server_command(launch: Launch, served_name: str, host: str, port: int) -> list[str]:
    """The command line, of SGLang for a `SglangLaunch` and else of vLLM.

    The workload's own arguments come last, so that they win. What the signals need is always asked for.
    """
    described = _sglang(launch) if isinstance(launch, SglangLaunch) else _vllm(launch)
    address = ["--served-model-name", served_name, "--host", host, "--port", str(port)]
    return [str(launch.python), "-m", *described, *address, *launch.args]


def _sglang(launch: SglangLaunch) -> list[str]:
    return [
        *("sglang.launch_server", "--model-path", str(launch.model), "--enable-metrics"),
        *_ranks("--tp-size", launch.tp),
        *_ranks("--dp-size", launch.dp),
        *(() if launch.hicache is None else _hicache(launch.hicache)),
    ]


def _vllm(launch: Launch) -> list[str]:
    return [
        *("vllm.entrypoints.cli.main", "serve", str(launch.model)),
        *("--enable-prompt-tokens-details", "--enable-per-request-metrics"),
        *_ranks("--tensor-parallel-size", launch.tp),
        *_ranks("--data-parallel-size", launch.dp),
    ]


def _ranks(option: str, count: int) -> list[str]:
    return [] if count == 1 else [option, str(count)]


def _hicache(hicache: HiCache) -> list[str]:
    return [
        *("--enable-hierarchical-cache", "--hicache-write-policy", hicache.write_policy),
        *(() if hicache.ratio is None else ("--hicache-ratio", f"{hicache.ratio:g}")),
        *(() if hicache.size_gb is None else ("--hicache-size", str(hicache.size_gb))),
    ]
