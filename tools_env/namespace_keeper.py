"""Makes user namespaces, then waits to kill what runs in them when its owner dies: a program of its own.

A program because unsharing a user namespace needs a process of one thread, and because it must outlive its owner.
Standard library only. For each byte that it reads it makes a namespace: it prints the pid of a process in it (or the
negated errno), waits for one byte (the owner has written the id maps), seals it, prints "sealed" and waits for another
byte (the owner has opened it). It ends when the owner is gone; an owner that closes in good order kills it.
"""

import ctypes
import os
import signal
import time

# Importing pathlib would double the time to start.
# ruff: noqa: PTH116, PTH123, PTH208
CLONE_NEWUSER = 0x10000000
SCANS = 20
SCAN_SECONDS = 0.1


def child(ready: int) -> None:
    """Unshares, says so on the pipe `ready` and follows the protocol above; never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER):
        os.write(1, b"%d\n" % -ctypes.get_errno())
        os._exit(1)
    os.write(ready, b"u")
    os.write(1, b"%d\n" % os.getpid())
    os.read(0, 1)
    # Sealed, no user namespace can be made below it, which shuts off much of the kernel from the agent. Where /proc/sys
    # is read-only (containers), that is not to be had.
    try:
        with open("/proc/sys/user/max_user_namespaces", "w") as limit:
            limit.write("0")
    except OSError:
        pass
    os.write(1, b"sealed\n")
    os.read(0, 1)
    os._exit(0)


def make() -> "set[int]":
    """Makes a namespace and returns its inode number, or nothing if the kernel refuses.

    It stays open here: the kernel gives the number of a namespace that is gone to the next new one, which would be
    another owner's.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(write)
    os.close(write)
    made = {os.fstat(os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)).st_ino} if os.read(read, 1) else set()
    os.close(read)
    os.waitpid(pid, 0)
    return made


def kill_all(namespaces: "set[int]") -> None:
    """Kills every process in one of the namespaces."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}/ns/user").st_ino in namespaces:
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass


def main() -> None:
    """Keeps until the owner is gone."""
    namespaces = set()
    while os.read(0, 1):
        namespaces |= make()
    # More than once, since a sandbox may be just coming up.
    for _ in range(SCANS):
        kill_all(namespaces)
        time.sleep(SCAN_SECONDS)


if __name__ == "__main__":
    main()
