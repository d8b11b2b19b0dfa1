"""Signals while Ray starts: nothing is worth draining yet, and everything that has been started must go."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from concur_batch.driver.driver import STOP_SIGNALS


class Stopped(Exception):
    """A signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP end Ray's start and raise Stopped."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    except Stopped:
        _shut_down()
        raise
    except SystemExit:  # Ray's own answer to SIGTERM, once it has come up
        _shut_down()
        raise Stopped(signal.SIGTERM) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shut_down() -> None:
    import ray

    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with suppress(Exception):
        ray.shutdown()
