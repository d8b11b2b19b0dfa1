"""Processes that a dead run has left are told from those of a run that lives."""

from __future__ import annotations

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


def test_only_what_a_dead_run_has_left_is_ended() -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert driver.stdout is not None
    child = psutil.Process(int(driver.stdout.readline()))
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
