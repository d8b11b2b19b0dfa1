"""The faults as they are done to a command that runs."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress

import psutil

from concur_batch.bench.chaos.disk import SmallDisk
from concur_batch.bench.chaos.family import descendants, of_kind
from concur_batch.bench.chaos.plan import Fault

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Striker:
    """Strikes one command; `disk` is the one that its run is on, if that can be full.

    `seen` are the processes that were found below the command when it was struck.
    """

    def __init__(self, command: psutil.Process, disk: SmallDisk | None) -> None:
        self._command = command
        self._disk = disk
        self.seen: set[psutil.Process] = set()

    def strike(self, fault: Fault) -> bool:
        """Returns once the fault is over, a full disk apart; False, at once, where there is no victim."""
        family = descendants(self._command)
        self.seen.update(family)
        try:
            match fault.kind:
                case "driver":
                    self._command.kill()
                case "SIGINT" | "SIGTERM":
                    self._command.send_signal(signal.Signals[fault.kind])
                case "signal twice":
                    self._signal_twice(fault)
                case "driver frozen":
                    _freeze(self._command, fault.hold_seconds)
                case "disk full":
                    self._fill(fault.hold_seconds)
                case _:
                    victims = of_kind(family, fault.kind)
                    if not victims:
                        return False
                    self._strike(victims[fault.which % len(victims)], fault)
        except psutil.NoSuchProcess:
            return False
        return True

    def _strike(self, victim: psutil.Process, fault: Fault) -> None:
        match fault.kind:
            case "host frozen":
                _freeze(victim, fault.hold_seconds)
            case "tool hung":
                self._hang(victim, fault)
            case _:
                victim.kill()

    def _hang(self, victim: psutil.Process, fault: Fault) -> None:
        """Whatever ends it, it does so before the tools' deadline, whose result an agent would see."""
        hosts = [parent for parent in victim.parents() if parent in of_kind([parent], "host")]
        if not hosts:
            raise psutil.NoSuchProcess(victim.pid)
        victim.suspend()
        time.sleep(fault.hold_seconds)
        with suppress(psutil.NoSuchProcess):
            match fault.after:
                case "wakes":
                    victim.resume()
                case "driver":
                    self._command.kill()
                case "host":
                    hosts[0].kill()
                case "signals":
                    self._signal_twice(fault)

    def _signal_twice(self, fault: Fault) -> None:
        number = _SIGNALS[fault.which % 2]
        self._command.send_signal(number)
        time.sleep(fault.hold_seconds)
        with suppress(psutil.NoSuchProcess):
            self._command.send_signal(number)

    def _fill(self, seconds: float) -> None:
        """The disk is full while the next faults strike, and the next command begins, if they come soon enough."""
        assert self._disk is not None, "the run is on one"
        self._disk.fill()
        threading.Timer(seconds, self._disk.free).start()


def _freeze(process: psutil.Process, seconds: float) -> None:
    process.suspend()
    time.sleep(seconds)
    with suppress(psutil.NoSuchProcess):
        process.resume()
