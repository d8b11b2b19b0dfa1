"""When a launched server that has died is started again. Pure."""

from __future__ import annotations

# A first wait long enough for ports and GPU memory to be given back, doubled up to what still seems soon to a person.
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
# After serving for so long, a death has nothing to do with the one before.
HEALTHY_SECONDS = 600.0
# Starts in a row that ended before they served: another would not go better.
FAILED_STARTS = 5


class Restarts:
    """Counts the deaths of one server, which has served at least once."""

    def __init__(self) -> None:
        self._next_seconds = FIRST_WAIT_SECONDS
        self._failed_starts = 0

    def wait_seconds(self, served_seconds: float | None) -> float | None:
        """How long to wait after this death; None: do not start it again.

        `served_seconds` is how long it had served, None where it died before it did.
        """
        self._failed_starts = self._failed_starts + 1 if served_seconds is None else 0
        if self._failed_starts >= FAILED_STARTS:
            return None
        if served_seconds is not None and served_seconds >= HEALTHY_SECONDS:
            self._next_seconds = FIRST_WAIT_SECONDS
        wait, self._next_seconds = self._next_seconds, min(LONGEST_WAIT_SECONDS, 2 * self._next_seconds)
        return wait
