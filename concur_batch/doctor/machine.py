"""Whether this machine can carry a run: Ray, sandboxes, disk, files, shared memory, cores."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import ray

from concur_batch.doctor.finding import Finding, failure, ok, warning
from concur_batch.driver.cluster import Cluster, ClusterError
from tools_env.bubblewrap import check
from tools_env.namespaces import UserNamespaces

_GIB = 1024**3
# A run of thousands of agents keeps its tokens, some GiB a day, and its workspaces; Ray refuses work on a disk that is
# full to 95 %.
_LEAST_DISK_BYTES, _ENOUGH_DISK_BYTES = 1 * _GIB, 10 * _GIB
# Of a host process: one connection to the engine for each agent, and this for Ray, logs, and tools that run.
_OTHER_FILES = 512
_SHARED_MEMORY = Path("/dev/shm")
# What a local Ray reserves there (driver/cluster.py).
_OBJECT_STORE_BYTES = 128 * 1024**2
# One for the hosts and the controller, one for the agents' tools.
_ENOUGH_CORES = 2


def inspect_machine(
    output: Path, agents_on_host: int, *, sandboxed: bool, ray_address: str | None
) -> Iterator[Finding]:
    """Every check, each as it is made. `output` is where runs are kept, `agents_on_host` how many agents one process
    holds, `sandboxed` whether their tools need bubblewrap."""
    yield ok("python", platform.python_version())
    yield check_cores(len(os.sched_getaffinity(0)))
    yield check_open_files(agents_on_host)  # before Ray starts, which raises the limit
    yield check_shared_memory()
    yield check_disk(output)
    if sandboxed:
        yield check_sandbox()
        yield check_namespaces()
    yield check_ray(ray_address)


def check_cores(cores: int) -> Finding:
    """How many this process may use."""
    if cores < _ENOUGH_CORES:
        return warning("cores", f"{cores}: tools and agents share it", f"give the run {_ENOUGH_CORES} cores at least")
    return ok("cores", str(cores))


def check_open_files(agents_on_host: int) -> Finding:
    """The hard limit: Ray raises the soft one to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = agents_on_host + _OTHER_FILES
    if hard == resource.RLIM_INFINITY or hard >= needed:
        shown = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        return ok("open files", f"soft limit {soft}, hard limit {shown}; {needed} needed for {agents_on_host} agents")
    mend = (
        f"raise it: `ulimit -Hn {needed}` as root, LimitNOFILE= in a systemd unit, --ulimit nofile={needed} for a "
        "container; or set agent.hosts higher"
    )
    return failure("open files", f"hard limit {hard}, but {needed} needed for {agents_on_host} agents of a host", mend)


def check_shared_memory(directory: Path = _SHARED_MEMORY) -> Finding:
    """Where Ray keeps its object store; it takes slower /tmp where the room does not suffice."""
    mend = "for a container: --shm-size=256m"
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return warning("shared memory", f"{directory}: {error.strerror}", mend)
    if free < _OBJECT_STORE_BYTES:
        return warning(
            "shared memory", f"{directory}: {_size(free)} free, Ray takes {_size(_OBJECT_STORE_BYTES)}", mend
        )
    return ok("shared memory", f"{directory}: {_size(free)} free")


def check_disk(output: Path) -> Finding:
    """Free room where runs are kept, and whether a run may be made there."""
    place = next(path for path in (output.absolute(), *output.absolute().parents) if path.is_dir())
    if not os.access(place, os.W_OK | os.X_OK):
        return failure("disk", f"{place} cannot be written", "set `output` to a directory that can be")
    free = shutil.disk_usage(place).free
    seen = f"{_size(free)} free in {place}"
    mend = "free some, or set `output` to a larger disk"
    if free < _LEAST_DISK_BYTES:
        return failure("disk", seen, mend)
    return warning("disk", seen, mend) if free < _ENOUGH_DISK_BYTES else ok("disk", seen)


def check_sandbox() -> Finding:
    """Runs one real sandbox."""
    problem = check()
    if problem is None:
        return ok("sandbox", "bubblewrap runs a command")
    reason, _, mend = str(problem).partition("). ")
    return failure("sandbox", f"{reason})" if mend else reason, mend or "install bubblewrap")


def check_namespaces() -> Finding:
    """Whether sandboxes get user namespaces of ours, under which a limit on processes holds even for root."""
    namespaces = UserNamespaces()
    try:
        namespaces.make()
    except OSError as error:
        return warning(
            "user namespaces",
            f"{error.strerror or error}: run by root, tools have no limit on processes",
            "allow them (sysctl user.max_user_namespaces), or do not run as root",
        )
    finally:
        namespaces.close()
    return ok("user namespaces", "can be made")


def check_ray(address: str | None) -> Finding:
    """Starts Ray here and stops it, or joins the cluster at the address (or RAY_ADDRESS) and leaves it."""
    try:
        cluster = Cluster(address)
    except ClusterError as error:
        joined = address or os.environ.get("RAY_ADDRESS")
        mend = "start the cluster, or mend its address" if joined else "see /tmp/ray/session_latest/logs"
        return failure("ray", str(error), mend)
    try:
        nodes = len(cluster.nodes())
    finally:
        cluster.close()
    what = "starts and stops" if cluster.is_ours else f"answers, {nodes} nodes"
    return ok("ray", f"{ray.__version__} {what}")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"
