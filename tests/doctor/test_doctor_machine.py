"""The machine's checks, with limits lowered and things taken away."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from concur_batch.doctor import machine
from concur_batch.doctor.machine import (
    check_cores,
    check_disk,
    check_namespaces,
    check_open_files,
    check_ray,
    check_sandbox,
    check_shared_memory,
    inspect_machine,
)
from concur_batch.driver.cluster import ClusterError
from tools_env.bubblewrap import SandboxUnavailable

GIB = 1024**3


def with_free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free_bytes))


def test_cores() -> None:
    assert check_cores(1).verdict == "warning"
    assert check_cores(2).verdict == "ok"


def test_the_hard_limit_on_files_must_hold_a_hosts_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (1024, 4096))
    assert check_open_files(4096 - 512).verdict == "ok"
    found = check_open_files(4096 - 511)
    assert found.verdict == "failure"
    assert "ulimit -Hn 4097" in found.mend
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    assert check_open_files(10**6).verdict == "ok"


def test_a_process_with_a_lowered_limit_says_so() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600));"
        "from concur_batch.doctor.machine import check_open_files; print(check_open_files(1000).verdict)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "failure", done.stderr


def test_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_shared_memory(tmp_path / "none").verdict == "warning"
    with_free(monkeypatch, 64 * 1024**2)  # docker's own default
    assert check_shared_memory(tmp_path).verdict == "warning"
    with_free(monkeypatch, 128 * 1024**2)
    assert check_shared_memory(tmp_path).verdict == "ok"


def test_the_disk_of_a_directory_that_is_not_there_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "not" / "yet"
    for free_bytes, verdict in ((GIB - 1, "failure"), (GIB, "warning"), (10 * GIB - 1, "warning"), (10 * GIB, "ok")):
        with_free(monkeypatch, free_bytes)
        found = check_disk(output)
        assert (found.verdict, str(tmp_path) in found.seen) == (verdict, True)
    assert not output.exists()


def test_a_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)  # root may write everywhere
    assert check_disk(tmp_path).verdict == "failure"


def test_the_sandbox_runs_here() -> None:
    assert check_sandbox().verdict == "ok"
    assert check_namespaces().verdict == "ok"


def test_a_sandbox_that_does_not_run_tells_how_to_mend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = SandboxUnavailable("bubblewrap cannot make a sandbox here (no. really). Allow user namespaces: sysctl x")
    monkeypatch.setattr(machine, "check", lambda: problem)
    found = check_sandbox()
    assert found.verdict == "failure"
    assert found.seen == "bubblewrap cannot make a sandbox here (no. really)"
    assert found.mend == "Allow user namespaces: sysctl x"


def test_without_namespaces_of_our_own_there_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> int:
        raise OSError(1, "not permitted")

    monkeypatch.setattr(machine.UserNamespaces, "make", refuse)
    assert check_namespaces().verdict == "warning"


def test_a_ray_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(address: str | None) -> None:
        raise ClusterError("cannot start Ray on this machine: no")

    monkeypatch.setattr(machine, "Cluster", broken)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert check_ray(None).verdict == "failure"
    assert check_ray(None).mend != check_ray("gpu-7:6379").mend


@pytest.mark.ray
def test_a_real_ray_starts_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = check_ray(None)
    assert found.verdict == "ok" and "starts and stops" in found.seen
    assert not machine.ray.is_initialized()


def test_a_workload_without_sandbox_asks_for_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "check_ray", lambda address: machine.ok("ray", str(address)))
    names = [f.name for f in inspect_machine(tmp_path, 8, sandboxed=False, ray_address="here:1")]
    assert names == ["python", "cores", "open files", "shared memory", "disk", "ray"]
    more = [f.name for f in inspect_machine(tmp_path, 8, sandboxed=True, ray_address=None)]
    assert set(more) - set(names) == {"sandbox", "user namespaces"}
    assert str(len(os.sched_getaffinity(0))) in [
        f.seen for f in inspect_machine(tmp_path, 8, sandboxed=False, ray_address=None)
    ]
