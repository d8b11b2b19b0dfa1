"""Processes that a dead run has left are told from those of a run that lives."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from concur_batch.driver.leftovers import end_leftovers, leftovers

_DRIVER = """
import subprocess, sys
from concur_batch.driver.leftovers import sign
sign()
child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""


def started(*program: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A program that stands for a driver, and the process that it has started."""
    driver = subprocess.Popen(
        [sys.executable, "-c", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert driver.stdout is not None
    return driver, psutil.Process(int(driver.stdout.readline()))


def test_only_what_a_dead_run_has_left_is_ended() -> None:
    driver, child = started(_DRIVER)
    try:
        assert child not in leftovers()
        end_leftovers()
        assert child.is_running()
        driver.kill()
        driver.wait()
        end_leftovers()  # unless another run on this machine has done so by now
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    finally:
        if child.is_running():
            child.kill()


# As Ray's agents are: their title has overwritten their environment, and their logs are in the session's directory.
_SESSION_DRIVER = """
import subprocess, sys
from pathlib import Path
from concur_batch.driver.leftovers import sign_session
session = Path(sys.argv[1])
sign_session(session)
with (session / "logs" / "agent.log").open("w") as log:
    child = subprocess.Popen([session / "ray::Agent", "600"], env={}, start_new_session=True, stdout=log)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_an_agent_of_ray_that_has_lost_its_environment_is_told_by_its_session(tmp_path: Path) -> None:
    session = tmp_path / "session_2026-11-30_14-50-43_123456_1"
    (session / "logs").mkdir(parents=True)
    sleep = shutil.which("sleep")
    assert sleep is not None
    (session / "ray::Agent").symlink_to(sleep)
    driver, child = started(_SESSION_DRIVER, str(session))
    try:
        assert child not in leftovers()
        driver.kill()
        driver.wait()
        (session / "concur_driver").rename(session / "hidden")
        assert child not in leftovers(), "a session of somebody else's"
        (session / "hidden").rename(session / "concur_driver")
        assert child in leftovers()
    finally:
        child.kill()
