"""Talk to the controller of a run that goes on, from another process: by what the run's manifest says of it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayTaskError

from concur_batch.driver.cluster import Cluster, ClusterError
from concur_batch.trace.reading import Run

# How long an answer may take: a controller that was killed comes back within a few seconds, and then waits up to ten
# for its hosts.
_ANSWER_SECONDS = 30.0


class NotRunning(Exception):
    """The run is not live; one line that says why."""


class NoAnswer(Exception):
    """The run is live, but its controller does not answer; one line."""


class Operation:
    """The controller of a live run, to be asked for any of its methods."""

    def __init__(self, run: str, controller: Any) -> None:
        self._run = run
        self._controller = controller

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method and wait for the answer. Raises what the method raises, NotRunning, or NoAnswer."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                left_seconds = max(0.0, deadline - time.monotonic())
                return ray.get(getattr(self._controller, method).remote(*arguments), timeout=left_seconds)
            except RayTaskError as error:
                raise error.cause from None
            except ActorDiedError:
                raise NotRunning(f"{self._run} is not running: it has just ended") from None
            except (ActorUnavailableError, GetTimeoutError):
                if time.monotonic() >= deadline:
                    raise NoAnswer(f"{self._run}: its controller does not answer; try again") from None
                time.sleep(0.2)


@contextmanager
def operating(run: Run) -> Iterator[Operation]:
    """Join the run's Ray for a while, which stays as it is. Raises NotRunning."""
    name, status, live = run.manifest["run"], run.manifest["status"], run.manifest.get("live")
    if live is None:
        why = "its controller is not up" if status in ("starting", "running") else f"its status is {status}"
        raise NotRunning(f"{name} is not running: {why}")
    if live["node"] == socket.gethostname() and not psutil.pid_exists(live["pid"]):
        raise NotRunning(f"{name} is not running: its process {live['pid']} is gone")
    try:
        cluster = Cluster(live["address"])
    except ClusterError as error:
        raise NotRunning(f"{name} is not running, or not to be reached from here: {error}") from None
    try:
        try:
            controller = ray.get_actor(controller_name(name))
        except ValueError:
            raise NotRunning(f"{name} is not running: its controller is gone") from None
        yield Operation(name, controller)
    finally:
        cluster.close()


def controller_name(run: str) -> str:
    """Under which Ray knows the controller of a run."""
    return f"{run}/controller"


def whereabouts(address: str) -> dict[str, Any]:
    """What the manifest says of a live run: its Ray's address, and this process, with which it ends."""
    return {"address": address, "node": socket.gethostname(), "pid": os.getpid()}
