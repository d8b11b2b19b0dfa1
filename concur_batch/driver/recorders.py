"""The recorders of a run, one a node, as its driver sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from concur_batch.driver.cluster import Cluster, Node, answer, answers, await_ref
from concur_batch.driver.silence import SILENT_SECONDS, Silence
from concur_batch.trace.journal import JOURNAL
from concur_batch.trace.manifest import update_manifest
from concur_batch.trace.recorder import Recorder

_PATIENCE_SECONDS = 30.0
_ROTATION_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
_CLOSE_SECONDS = 120.0
# While it closes, one that does not say a word for so long has hung.
_CLOSE_SILENCE_SECONDS = 30.0


class Recorders:
    """`tables` is their URI, None where they are in the run directory."""

    def __init__(self, cluster: Cluster, run_dir: Path, tables: str | None) -> None:
        self._cluster = cluster
        self._run_dir = run_dir
        self._tables = tables
        self._actors: dict[str, Any] = {}  # by node
        self._journals: dict[str, tuple[str, str]] = {}  # by node: the recorder's name, and where its journal is
        self._told: set[str] = set()  # why parts could not be stored
        self._silence = Silence(SILENT_SECONDS)

    def start(self, nodes: Iterable[Node]) -> None:
        """Start one on each of the nodes. The first is known to Ray as `<run>/recorder0`."""
        for node in nodes:
            name = f"recorder{len(self._actors)}"
            factory = self._cluster.actor(Recorder, node, restarts=-1, name=f"{self._run_dir.name}/{name}")
            # With the node's id in it no other recorder has the name, though its disk be lost and come back.
            unique = f"{name}-{node.id[:8]}"
            self._actors[node.id] = factory.remote(self._run_dir, unique, storage=self._tables)
            self._journals[node.id] = (unique, f"{node.address}:{self._run_dir / JOURNAL}")
        self._tell_journals()

    def of(self, node: Node) -> Any:
        """The actor on that node."""
        return self._actors[node.id]

    def nodes(self) -> list[Node]:
        """The living nodes that have one."""
        return [node for node in self._cluster.nodes() if node.id in self._actors]

    async def settle(self, host: str, given_up: asyncio.Event) -> None:
        """Before others go on from what a dead host has sent: all of it can be read, none of it is taken back, and
        nothing comes after.

        Waits for a disk that is full, and for a while for a recorder that does not answer, but not once it is
        `given_up`. Where a lost node's disk is another one and comes back, what is in its journal has been made anew by
        then: it is stored no more.
        """
        for node, actor in list(self._actors.items()):
            await answer(actor.fence.remote(host))
            patience = time.monotonic() + _PATIENCE_SECONDS
            while not (await _is_stored(actor, patience) or given_up.is_set()):
                if node not in {living.id for living in self._cluster.nodes()}:
                    del self._actors[node], self._journals[node]
                    self._tell_journals()
                    break
                await asyncio.sleep(_PAUSE_SECONDS)

    async def news(self) -> list[str]:
        """Which of them have hung and are started again, and why parts cannot be stored, each reason once. Nothing is
        lost meanwhile, but the journals grow."""
        actors = dict(self._actors)
        totals, waited_seconds = await answers({node: actor.totals.remote() for node, actor in actors.items()})
        hung = self._silence.hung({node: told is not None for node, told in totals.items()}, waited_seconds)
        for node in hung:
            ray.kill(actors[node], no_restart=False)
        errors = {found["rotation_error"] for found in totals.values() if found and found["rotation_error"]}
        new = sorted(errors - self._told)
        self._told |= errors
        return [
            *(f"a recorder does not answer any more and is started again (node {node[:8]})" for node in hung),
            *(f"{error}; the rows are safe in the journal, the next part tries again" for error in new),
        ]

    async def close(self) -> None:
        """What is committed becomes Parquet, which takes a second or two."""
        await asyncio.gather(*map(_closed, self._actors.values()))
        for actor in self._actors.values():
            ray.kill(actor)

    def _tell_journals(self) -> None:
        update_manifest(self._run_dir, journals=dict(self._journals.values()))


async def _is_stored(actor: Any, patience: float) -> bool:
    """Whether a recorder has stored all that it was sent, or has not answered until then."""
    try:
        await asyncio.wait_for(await_ref(actor.rotate.remote()), _ROTATION_SECONDS)
        return True
    except RayTaskError:
        return False
    except (RayError, TimeoutError):
        return time.monotonic() > patience


async def _closed(actor: Any) -> None:
    """Close a recorder, and wait for it as long as it is not silent: what one that has hung could not store is in its
    journal."""
    closing = asyncio.create_task(answer(actor.close.remote(), _CLOSE_SECONDS))
    while not closing.done():
        await asyncio.wait([closing], timeout=_PAUSE_SECONDS)
        if not closing.done() and await answer(actor.totals.remote(), _CLOSE_SILENCE_SECONDS) is None:
            break
    closing.cancel()
