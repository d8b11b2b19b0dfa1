"""The run's engine: one that serves already, one that we launch, or our simulation of one."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from concur_batch.driver.cluster import Cluster, Node, await_ref
from concur_batch.engine.launcher import Launcher
from concur_batch.engine.pools import Replica
from concur_batch.engine.protocol import EngineError
from concur_batch.engine.simulated import SimulatedServer
from concur_batch.workload.schema import SglangEngine, SimulatedEngine, Workload


@dataclass(slots=True)
class RunningEngine:
    """Where the engine's replicas serve; `actors` are what we started for them, if anything."""

    replicas: tuple[Replica, ...]
    actors: tuple[Any, ...] = ()

    async def alive(self) -> bool:
        """Whether anything that we started still runs; what was there before us is not ours to judge.

        The agents of a replica that has ended go on at the others.
        """
        return not self.actors or any(await asyncio.gather(*map(_alive, self.actors)))


async def start_engine(workload: Workload, cluster: Cluster, node: Node, run_dir: Path) -> RunningEngine:
    """Start or find the engine of the workload. Raises EngineError with what to do."""
    host = "127.0.0.1" if len(cluster.nodes()) == 1 else node.address
    match workload.engine:
        case SglangEngine(launch=launch) if launch is not None:
            log = run_dir / "engine" / "sglang.log"
            actors = [cluster.actor(Launcher, node).remote(launch, workload.model.name, host, log)]
        case SglangEngine(url=url, urls=urls, api_key=variable):
            key = os.environ[variable] if variable else None
            return RunningEngine(tuple(Replica(served, key) for served in ([url] if url is not None else urls)))
        case SimulatedEngine() as engine:
            if engine.script is not None:  # other nodes see the run directory, but not the workload's
                script = run_dir / "engine" / "scripts.jsonl"
                script.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(engine.script, script)
                engine = engine.model_copy(update={"script": script})
            actors = [
                cluster.actor(SimulatedServer, node).remote(
                    engine, workload.agent, run_dir / "model", workload.model.name, host, workload.tasks.seed
                )
                for _ in range(engine.replicas)
            ]
    try:
        urls = await asyncio.gather(*(await_ref(actor.start.remote()) for actor in actors))
    except RayError as error:
        raise EngineError(str(getattr(error, "cause", error)).strip().splitlines()[-1]) from None
    return RunningEngine(tuple(Replica(url) for url in urls), tuple(actors))


async def _alive(actor: Any) -> bool:
    try:
        return bool(await asyncio.wait_for(await_ref(actor.alive.remote()), 5))
    except TimeoutError:
        return True  # it is there and does not answer: the controller's readings tell that
    except RayError:
        return False
