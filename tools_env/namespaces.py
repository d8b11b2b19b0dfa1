"""User namespaces made ahead of use, for sandboxes to run in.

A sandbox could make its own on every call, but two things need them made by us:

* Run by root, such a sandbox would still be the host's root: no limit on processes holds for it (the kernel exempts
  user 0 from RLIMIT_NPROC), and a single slip would be a slip of root. Here the agent is `nobody` on the host.
* RLIMIT_NPROC counts by user and, since Linux 5.14, by user namespace: so each running sandbox has its own count only
  if it runs in its own namespace, and the limit must be known before the sandbox's first process.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

AGENT_ID = 1000
"""User and group of the agent inside the sandbox."""

_NOBODY = 65534
_SHIFT = 1 << 20

_KEEPER = Path(__file__).with_name("namespace_keeper.py")


def agent_host_id() -> int:
    """The host's user and group that an agent has in a namespace of ours: nobody if we are root, else our own."""
    return _NOBODY if os.geteuid() == 0 else os.geteuid()


class UserNamespaces:
    """User namespaces made on demand, and held until `close`.

    A helper process (`namespace_keeper.py`) makes them and then waits: if this process dies, it kills what still runs
    in them. bubblewrap's own --die-with-parent does not suffice, since the kernel does not let its outer process, which
    is root without capabilities, signal the inner one, which is nobody.
    """

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_KEEPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    def make(self) -> int:
        """Makes one (in about 2 ms) and returns its descriptor, which stays ours.

        Raises:
            OSError: the kernel or the container does not let us make it or map users into it.
        """
        keeper = self._keeper
        assert keeper.stdin is not None and keeper.stdout is not None
        keeper.stdin.write(b"n")
        pid = int(keeper.stdout.readline() or -errno.EPIPE)
        if pid < 0:
            raise OSError(-pid, f"cannot make a user namespace: {os.strerror(-pid)}")
        # Whatever fails here, the keeper's child is led to its end.
        try:
            try:
                _map_ids(Path(f"/proc/{pid}"))
            finally:
                keeper.stdin.write(b"m")
                keeper.stdout.readline()
            self._descriptors.append(os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC))
        finally:
            keeper.stdin.write(b"o")
        return self._descriptors[-1]

    def close(self) -> None:
        """Frees the namespaces; nothing may run in them any more."""
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.kill()
        self._keeper.wait()
        self._keeper.stdin.close()
        self._keeper.stdout.close()
        while self._descriptors:
            os.close(self._descriptors.pop())


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
