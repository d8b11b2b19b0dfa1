"""`make bench-real`: policies on the same replayed work, on a real SGLang and a real vLLM on the CPU.

A cell is one `concur run` of one system in one repetition, against a server whose cache has just been emptied. Cells
that are on disk already are not measured again, so that the benchmark goes on where it was stopped. Repetitions are
interleaved: what changes on the machine meanwhile meets all systems alike.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import track

from concur_batch.bench.processes import watched_command
from concur_batch.bench.real_cells import REPETITIONS, RESULTS, Cell, digest_of, store, stored, workload_of
from concur_batch.bench.real_loads import GRID, LOADS, RealLoad, System
from concur_batch.bench.real_table import means, table
from concur_batch.engine.clients import connect
from concur_batch.engine.launcher import Launcher
from concur_batch.engine.protocol import EngineError
from concur_batch.trace.reading import Run
from concur_batch.workload.loading import load as read_workload
from concur_batch.workload.schema import HiCache, LaunchedEngine, SglangLaunch

_FLUSH = {"sglang": "/flush_cache", "vllm": "/reset_prefix_cache"}
_HICACHE = HiCache(ratio=4)
# Its transfers between device and host are plain copies of torch where there is no GPU.
_HICACHE_ARGS = ["--hicache-io-backend=direct", "--hicache-mem-layout=layer_first"]


async def measure(repetition: int, loads: Sequence[RealLoad], *, hicache: bool) -> None:
    """The cells of one repetition of loads of the same workload that are not on disk, on one server."""
    missing = [
        (load, system)
        for load in loads
        for system in _turned(load.systems, repetition)
        if system.hicache is hicache and stored(load, system, repetition) is None
    ]
    if not missing:
        return
    async with _server(loads[0], hicache=hicache) as url:
        for load, system in track(missing, f"{loads[0].workload}, repetition {repetition}"):
            await _empty_cache(load.engine, url)
            cell = await asyncio.to_thread(_run, load, system, repetition, url)
            store(cell, load, system)


def main() -> None:
    """Measure what is missing, of all repetitions or of so many (the first argument); print and write the tables."""
    console = Console(width=240)
    for repetition in range(REPETITIONS)[: int(sys.argv[1]) if len(sys.argv) > 1 else None]:
        for _, loads_of_workload in itertools.groupby(LOADS, lambda load: load.workload):
            loads = list(loads_of_workload)
            for hicache in (False, True):
                asyncio.run(measure(repetition, loads, hicache=hicache))
    lines = [line for load in LOADS if (rows := list(table(load))) for line in (f"## {load.title}", "", *rows, "")]
    lines += [*means(GRID), ""]
    lines.append("¹ HiCache's transfers are stand-ins where there is no GPU: its hits are real, its seconds are not.")
    (RESULTS / "tables.md").write_text("\n".join(lines) + "\n")
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


def _turned(systems: Sequence[System], repetition: int) -> Sequence[System]:
    """Another system begins each time, so that none always has the freshest server."""
    first = repetition % len(systems)
    return [*systems[first:], *systems[:first]]


@asynccontextmanager
async def _server(load: RealLoad, *, hicache: bool) -> Any:
    """The server of the load's workload; gives its URL once it serves."""
    loaded = read_workload(workload_of(load)).workload
    assert isinstance(loaded.engine, LaunchedEngine) and loaded.engine.launch is not None, "the workload launches one"
    launch = loaded.engine.launch
    if hicache:
        assert isinstance(launch, SglangLaunch), "HiCache is SGLang's"
        launch = launch.model_copy(update={"hicache": _HICACHE, "args": [*launch.args, *_HICACHE_ARGS]})
    section = loaded.engine.model_copy(update={"launch": launch})
    launcher = Launcher(section, loaded.model.name, "127.0.0.1", RESULTS / f"{load.engine}.log")
    try:
        url = await launcher.start()
    except EngineError as error:
        raise SystemExit(str(error)) from None
    client = connect(loaded.engine.kind, url, 60, 0)
    try:
        await client.probe({"temperature": 0.0})  # the first request compiles
        yield url
    finally:
        await client.close()
        await launcher.stop()


async def _empty_cache(engine: str, url: str) -> None:
    async with aiohttp.ClientSession() as session, session.post(url + _FLUSH[engine]) as response:
        response.raise_for_status()


def _run(load: RealLoad, system: System, repetition: int, url: str) -> Cell:
    """One `concur run`, in a process of its own."""
    settings = [
        *load.settings,
        f"engine={json.dumps({'kind': load.engine, 'url': url})}",
        f"control={json.dumps(system.control)}",
        f"output={RESULTS / 'runs'}",
    ]
    command = [str(Path(sys.executable).with_name("concur")), "run", str(workload_of(load)), "--json"]
    figures, _ = watched_command(system.name, [*command, *(part for each in settings for part in ("--set", each))])
    run = Run(figures["run_dir"])
    turns = run.table("turns", ["generation_started_seconds", "ended_seconds"])
    began, ended = pc.min(turns["generation_started_seconds"]).as_py(), pc.max(turns["ended_seconds"]).as_py()
    control_rows = run.table("control").sort_by("seconds")
    return Cell(
        engine=load.engine,
        load=load.name,
        system=system.name,
        repetition=repetition,
        digest=digest_of(load, system),
        run_dir=str(run.path),
        seconds=ended - began,
        device_hit_rate=figures["hit_rate"] or 0.0,
        host_hit_rate=figures["host_hit_rate"] or 0.0,
        input_tokens=figures["input_tokens"],
        computed_tokens=figures["first_tokens"] + figures["recomputed_tokens"] + figures["rounding_tokens"],
        recomputed_tokens=figures["recomputed_tokens"],
        evicted_tokens=pc.sum(control_rows["evicted_tokens"]).as_py(),
        retractions=pc.sum(control_rows["retractions"]).as_py() or 0,
        window_mean=figures["window_mean"],
        increases=figures["window_increases"],
        cuts=figures["window_cuts"],
        windows=tuple(window for window in control_rows["window_after"].to_pylist() if window is not None),
    )


if __name__ == "__main__":
    main()
