"""User namespaces made ahead of use, for sandboxes to run in.

A sandbox could make its own on every call, but two things need them made by us:

* Run by root, such a sandbox would still be the host's root: no limit on processes holds for it (the kernel exempts
  user 0 from RLIMIT_NPROC), and a single slip would be a slip of root. Here the agent is `nobody` on the host.
* RLIMIT_NPROC counts by user and, since Linux 5.14, by user namespace: so each running sandbox has its own count only
  if it runs in its own namespace, and the limit must be known before the sandbox's first process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

AGENT_ID = 1000
"""User and group of the agent inside the sandbox."""

_NOBODY = 65534
_SHIFT = 1 << 20

# Unsharing needs a process of one thread, so a small helper does it. Each child of it is sealed (no user namespace can
# be made below it, which keeps the kernel's largest attack surface shut) once its maps are written; the namespace then
# lives on in the descriptor that we hold.
_HELPER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        if libc.unshare(0x10000000):
            os.write(1, b"%d\\n" % -ctypes.get_errno())
            os._exit(1)
        os.write(1, b"%d\\n" % os.getpid())
        os.read(0, 1)
        try:
            with open("/proc/sys/user/max_user_namespaces", "w") as limit:
                limit.write("0")
        except OSError:
            pass
        os.write(1, b"sealed\\n")
        os.read(0, 1)
        os._exit(0)
    os.waitpid(child, 0)
"""


def agent_host_id() -> int:
    """The host's user and group that an agent has in a namespace of ours: nobody if we are root, else our own."""
    return _NOBODY if os.geteuid() == 0 else os.geteuid()


def create_user_namespaces(count: int) -> list[int]:
    """Makes user namespaces and returns an open descriptor of each; closing it frees the namespace.

    Raises:
        OSError: the kernel or the container does not let us make them or map users into them.
    """
    helper = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _HELPER, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    assert helper.stdin is not None and helper.stdout is not None
    descriptors: list[int] = []
    try:
        for _ in range(count):
            pid = int(helper.stdout.readline() or b"-1")
            if pid < 0:
                raise OSError(-pid, f"cannot make a user namespace: {os.strerror(-pid)}")
            _map_ids(Path(f"/proc/{pid}"))
            helper.stdin.write(b"\n")
            helper.stdout.readline()
            descriptors.append(os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC))
            helper.stdin.write(b"\n")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    finally:
        helper.kill()
        helper.wait()
        helper.stdin.close()
        helper.stdout.close()
    return descriptors


def _map_ids(process: Path) -> None:
    if os.geteuid() != 0:
        # Without privileges only one's own ids may be mapped, and groups only once setgroups is given up.
        (process / "setgroups").write_text("deny")
        (process / "uid_map").write_text(f"{AGENT_ID} {os.geteuid()} 1")
        (process / "gid_map").write_text(f"{AGENT_ID} {os.getegid()} 1")
        return
    for name in ("uid_map", "gid_map"):
        ours = [tuple(map(int, line.split())) for line in Path("/proc/self", name).read_text().splitlines()]
        lines = [line for first, _, count in ours for line in _map_lines(first, count)]
        (process / name).write_text("\n".join(lines))


def _map_lines(first: int, count: int) -> list[str]:
    """Map lines for the ids `first`.. of ours: nobody becomes the agent, all others are shifted out of the way.

    The others are mapped so that bubblewrap, while it still holds the namespace's capabilities, may pass through
    directories closed to others (a run under /root) to mount the workspace. No process can become one of them: the
    agent's have no capability and no set-user-id program works. Root's own id must not become 0, or else bubblewrap
    would lose its capabilities when it turns from it to the agent.
    """
    end = min(first + count, (1 << 32) - 1 - _SHIFT)
    if not first <= _NOBODY < end:
        return [f"{first + _SHIFT} {first} {end - first}"] if end > first else []
    parts = [
        (first + _SHIFT, first, _NOBODY - first),
        (AGENT_ID, _NOBODY, 1),
        (_NOBODY + 1 + _SHIFT, _NOBODY + 1, end - _NOBODY - 1),
    ]
    return [f"{inside} {outside} {length}" for inside, outside, length in parts if length > 0]
