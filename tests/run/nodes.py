"""Ray clusters of several nodes on this machine, whose state directories are separate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.servers import free_port

RAY = str(Path(sys.executable).with_name("ray"))


@contextmanager
def ray_nodes(count: int, *arguments: str, private: Path | None = None) -> Iterator[str]:
    """The address of a cluster of so many nodes, each started with these arguments.

    In the place of the directory `private`, each node but the first has an empty disk of its own; as root only.
    """
    mount = f'mount -t tmpfs own {private} && exec "$@"'
    disk = () if private is None else ("unshare", "--mount", "sh", "-c", mount, "sh")
    # Unix sockets have short paths, pytest's directories long ones.
    base = Path(f"/tmp/cr{os.getpid()}")
    port = free_port()
    address = f"127.0.0.1:{port}"
    try:
        _start_node(base / "0", "--head", f"--port={port}", "--include-dashboard=false", *arguments)
        for number in range(1, count):
            _start_node(base / str(number), f"--address={address}", *arguments, before=disk)
        yield address
    finally:
        for process in psutil.process_iter(["cmdline"]):
            if str(base) in " ".join(process.info["cmdline"] or []):
                process.send_signal(signal.SIGKILL)
        subprocess.run(["rm", "-rf", str(base)], check=False)


def kill_node(number: int) -> None:
    """End a node as a failing machine does: whatever it ran ends with it."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "raylet" and f"/tmp/cr{os.getpid()}/{number}/" in " ".join(process.info["cmdline"]):
            process.kill()


def _start_node(temp_dir: Path, *arguments: str, before: Sequence[str] = ()) -> None:
    """One `ray start`, in the background as an operator would."""
    command = [*before, RAY, "start", "--num-cpus=2", f"--temp-dir={temp_dir}", "--object-store-memory=100000000"]
    command += ["--node-ip-address=127.0.0.1", "--disable-usage-stats", *arguments]
    # Ray takes a cluster on the loopback address for one on a Mac, and wants to be told that it is meant.
    env = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1", "RAY_AUTH_MODE": "token"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
