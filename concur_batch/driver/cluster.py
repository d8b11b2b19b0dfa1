"""Ray under a run: a local one that is ours to stop, or a running cluster that stays as it is."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from concur_batch import TOKEN
from concur_batch.driver.leftovers import sign, sign_session

T = TypeVar("T")

_LOCAL_OBJECT_STORE_BYTES = 128 * 1024**2  # nothing large passes through it
# An actor that takes longer dies, restarts or hangs.
_ANSWER_SECONDS = 5.0


class ClusterError(Exception):
    """Ray could not be started or joined; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Node:
    """A living node of the cluster."""

    id: str
    address: str


class Cluster:
    """Starts Ray on this machine, or joins the cluster at `address` (or RAY_ADDRESS) and leaves it running."""

    def __init__(self, address: str | None) -> None:
        address = address or os.environ.get("RAY_ADDRESS") or None
        self.is_ours = address is None
        if address is not None:
            _check_answers(address)
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": "concur"}
        if self.is_ours:
            sign()
            options |= {"include_dashboard": False, "object_store_memory": _LOCAL_OBJECT_STORE_BYTES}
        else:
            options["address"] = address
        try:
            context = ray.init(**options)
        except Exception as error:
            # Ray says some things with a bare Exception, as that its node did not come up in time.
            if (
                not isinstance(error, ConnectionError | RuntimeError | ValueError | OSError)
                and type(error) is not Exception
            ):
                raise
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            if self.is_ours:
                raise ClusterError(f"cannot start Ray on this machine: {first_line}") from None
            raise ClusterError(
                f"cannot join the Ray cluster at {address}: {first_line}; does `ray status --address {address}` work, "
                f"with the cluster's token in {TOKEN} if it asks for one?"
            ) from None
        if self.is_ours:
            sign_session(Path(context.address_info["session_dir"]))

    @property
    def address(self) -> str:
        """Where other processes join it, as HOST:PORT."""
        return str(ray.get_runtime_context().gcs_address)

    def nodes(self) -> list[Node]:
        """The living nodes, this one first, then by id."""
        here = ray.get_runtime_context().get_node_id()
        alive = [node for node in ray.nodes() if node["Alive"]]
        alive.sort(key=lambda node: (node["NodeID"] != here, node["NodeID"]))
        return [Node(node["NodeID"], node["NodeManagerAddress"]) for node in alive]

    def actor(self, cls: type, node: Node, *, restarts: int = 0, name: str | None = None) -> Any:
        """A factory for an actor of that class on that node: call `.remote(...)` on it.

        Actors ask for no CPU, since they share what the agents' tools leave.
        """
        return ray.remote(cls).options(
            num_cpus=0,
            max_restarts=restarts,
            name=name,
            scheduling_strategy=on_node(node),
        )

    async def on_nodes(self, nodes: Iterable[Node], function: Callable[..., T], *arguments: Any) -> list[T]:
        """Call a function in a process on each of the nodes. Raises what it raises, or RayError."""
        call = ray.remote(function)
        options = [{"num_cpus": 0, "scheduling_strategy": on_node(node)} for node in nodes]
        calls = (await_ref(call.options(**option).remote(*arguments)) for option in options)
        return list(await asyncio.gather(*calls))

    def close(self) -> None:
        """Stop our Ray, or leave the cluster that was there before us."""
        ray.shutdown()


def on_node(node: Node) -> NodeAffinitySchedulingStrategy:
    """Ray's strategy for what runs on that node and on no other."""
    return NodeAffinitySchedulingStrategy(node.id, soft=False)


async def await_ref(ref: Any) -> Any:
    """An actor's answer, as a coroutine: what asyncio's tasks and time limits take."""
    return await ref


async def answer(ref: Any, seconds: float = _ANSWER_SECONDS) -> Any:
    """An actor's answer, or None if it fails, dies, restarts or takes longer."""
    try:
        return await asyncio.wait_for(await_ref(ref), seconds)
    except (RayError, TimeoutError):
        return None


async def answers(refs: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """The answers of several actors, None for one that gives none, and the seconds that they were waited for."""
    began = time.monotonic()
    told = await asyncio.gather(*map(answer, refs.values()))
    # It was not waited while this process was busy, or stopped.
    return dict(zip(refs, told, strict=True)), min(_ANSWER_SECONDS, time.monotonic() - began)


def _check_answers(address: str) -> None:
    """Ask quickly what Ray would ask for minutes: does anything listen there?"""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" and the like: Ray finds out
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster answers at {address}: {error.strerror or error}; check with `ray status`"
        ) from None
