"""Makes user namespaces, then waits to kill what runs in them when its owner dies: a program of its own.

A program because unsharing a user namespace needs a process of one thread, and because it must outlive its owner.
Standard library only. Usage: COUNT. For each namespace it prints the pid of a process in it, waits for one byte (the
owner has written the id maps), seals it, prints "sealed" and waits for another byte (the owner has opened it). Then
it reads until the owner is gone; an owner that closes in good order kills this program.
"""

import ctypes
import os
import signal
import sys
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


def make(count: int) -> "set[int]":
    """Makes the namespaces one after the other and returns their inode numbers.

    Each stays open here: the kernel gives the number of a namespace that is gone to the next new one, which would be
    another owner's.
    """
    namespaces = set()
    for _ in range(count):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            child(write)
        os.close(write)
        if os.read(read, 1):
            namespaces.add(os.fstat(os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)).st_ino)
        os.close(read)
        os.waitpid(pid, 0)
    return namespaces


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
    namespaces = make(int(sys.argv[1]))
    while os.read(0, 1):
        pass
    # More than once, since a sandbox may be just coming up.
    for _ in range(SCANS):
        kill_all(namespaces)
        time.sleep(SCAN_SECONDS)


if __name__ == "__main__":
    main()
