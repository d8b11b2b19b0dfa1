"""The run's engine: servers that serve already, ones that we launch, or our simulation of some."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from concur_batch.driver.cluster import Cluster, await_ref, on_node
from concur_batch.engine.launcher import Launcher
from concur_batch.engine.pools import Replica
from concur_batch.engine.protocol import EngineError
from concur_batch.engine.simulated import SimulatedServer
from concur_batch.workload.schema import Launch, LaunchedEngine, ServerEngine, SimulatedEngine, Workload

# An actor that has no place yet, or loads its modules, answers later.
_NEWS_SECONDS = 1.0


class News:
    """What launchers have to tell, each line once."""

    def __init__(self, launchers: Sequence[Any] = ()) -> None:
        self._launchers = launchers
        self._heard = [0] * len(launchers)

    async def read(self) -> list[str]:
        """What is new since the last call; an actor that does not answer in time is heard the next time."""
        asked = (_notes(actor, heard) for actor, heard in zip(self._launchers, self._heard, strict=True))
        told = await asyncio.gather(*asked)
        self._heard = [heard + len(notes) for heard, notes in zip(self._heard, told, strict=True)]
        return [note for notes in told for note in notes]


@dataclass(slots=True)
class RunningEngine:
    """Where the engine's replicas serve; `actors` are what we started for them, `news` what befalls it."""

    replicas: tuple[Replica, ...]
    actors: tuple[Any, ...] = ()
    news: News = field(default_factory=News)

    async def alive(self) -> bool:
        """Whether anything that we started still runs; what was there before us is not ours to judge.

        The agents of a replica that has ended go on at the others.
        """
        return not self.actors or any(await asyncio.gather(*map(_alive, self.actors)))


async def start_engine(
    workload: Workload, cluster: Cluster, run_dir: Path, on_note: Callable[[str], None]
) -> RunningEngine:
    """Start or find the engine of the workload, with the progress as notes. Raises EngineError with what to do."""
    match workload.engine:
        case LaunchedEngine(kind=kind, launch=launch) if launch is not None:
            on_note(f"starting {kind}; its log is in {run_dir / 'engine'}")
            actors = _launchers(workload.engine, launch, workload.model.name, cluster, run_dir)
            news = News(actors)
            urls = await _started(actors, news, on_note)
            return RunningEngine(tuple(Replica(kind, url) for url in urls), tuple(actors), news)
        case ServerEngine(kind=kind, url=url, urls=several, api_key=variable):
            key = os.environ[variable] if variable else None
            name = workload.model.name
            return RunningEngine(
                tuple(Replica(kind, served, key, name) for served in ([url] if url is not None else several))
            )
        case SimulatedEngine() as engine:
            actors = _simulations(workload, engine, cluster, run_dir)
            urls = await _started(actors, News(), on_note)
            return RunningEngine(tuple(Replica("sglang", url) for url in urls), tuple(actors))


def gpus_per_node(launch: Launch, node_gpus: Sequence[float]) -> int:
    """How many GPUs each server asks Ray for on each of its nodes, where the cluster's have so many. Raises EngineError
    where the servers do not fit.

    Not every cluster has GPUs: without any, the default is none, for an engine that runs on the CPU.
    """
    if len(node_gpus) < launch.nodes:
        raise EngineError(
            f"engine.launch.nodes is {launch.nodes}, and the nodes of the cluster are {len(node_gpus)}: "
            "lower it, or join a larger cluster (--ray-address)"
        )
    gpus = launch.gpus if launch.gpus is not None else launch.tp * launch.dp if any(node_gpus) else 0
    here = gpus // launch.nodes
    # A node takes at most one part of each server.
    parts = sum(min(int(has) // here if here else launch.replicas, launch.replicas) for has in node_gpus)
    if parts < launch.replicas * launch.nodes:
        has = " and ".join(f"{here:g}" for here in node_gpus)
        where = "on one node" if launch.nodes == 1 else f"on {launch.nodes} nodes"
        raise EngineError(
            f"engine.launch wants {launch.replicas} × {gpus} GPUs, a server's {where}, and the nodes have {has}: "
            "lower replicas, nodes, tp, dp or gpus, or join a larger cluster"
        )
    return here


def _launchers(section: LaunchedEngine, launch: Launch, name: str, cluster: Cluster, run_dir: Path) -> list[Any]:
    """An actor a server: where Ray has the GPUs, or in turn on the nodes where it takes none."""
    nodes = cluster.nodes()
    alive = [node for node in ray.nodes() if node["Alive"]]
    gpus = gpus_per_node(launch, [node["Resources"].get("GPU", 0) for node in alive])
    host = "127.0.0.1" if len(nodes) == 1 else None
    actors = []
    for number in range(launch.replicas):
        first, *others = (
            # Ray chooses the nodes, and which of their GPUs the parts see (CUDA_VISIBLE_DEVICES).
            _spread(gpus, launch.nodes)
            if gpus
            else [on_node(nodes[(number * launch.nodes + part) % len(nodes)]) for part in range(launch.nodes)]
        )
        factory = ray.remote(Launcher).options(num_cpus=0, num_gpus=gpus, scheduling_strategy=first)
        log = run_dir / "engine" / f"{section.kind}-{number}.log"
        actors.append(factory.remote(section, name, host, log, others, gpus))
    return actors


def _spread(gpus: int, nodes: int) -> list[PlacementGroupSchedulingStrategy]:
    """Places on so many different nodes, with so many GPUs each; Ray takes them back when the run ends."""
    group = placement_group([{"GPU": gpus}] * nodes, strategy="STRICT_SPREAD")
    return [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number) for number in range(nodes)]


def _simulations(workload: Workload, engine: SimulatedEngine, cluster: Cluster, run_dir: Path) -> list[Any]:
    nodes = cluster.nodes()
    host = "127.0.0.1" if len(nodes) == 1 else nodes[0].address
    if engine.script is not None:  # other nodes see the run directory, but not the workload's
        script = run_dir / "engine" / "scripts.jsonl"
        script.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(engine.script, script)
        engine = engine.model_copy(update={"script": script})
    return [
        cluster.actor(SimulatedServer, nodes[0]).remote(
            engine, workload.agent, run_dir / "model", workload.model.name, host, workload.seed
        )
        for _ in range(engine.replicas)
    ]


async def _started(actors: Sequence[Any], news: News, on_note: Callable[[str], None]) -> list[str]:
    """The URLs of all, once all serve; until then, their news."""
    starting = asyncio.gather(*(await_ref(actor.start.remote()) for actor in actors))
    try:
        while not starting.done():
            await asyncio.wait([starting], timeout=_NEWS_SECONDS)
            for note in await news.read():
                on_note(note)
        return await starting
    except RayError as error:
        raise EngineError(str(getattr(error, "cause", error)).strip().splitlines()[-1]) from None
    finally:
        starting.cancel()


async def _notes(launcher: Any, heard: int) -> list[str]:
    try:
        return list(await asyncio.wait_for(await_ref(launcher.notes.remote(heard)), _NEWS_SECONDS))
    except (RayError, TimeoutError):
        return []


async def _alive(actor: Any) -> bool:
    try:
        return bool(await asyncio.wait_for(await_ref(actor.alive.remote()), 5))
    except TimeoutError:
        return True  # it is there and does not answer: the controller's readings tell that
    except RayError:
        return False
