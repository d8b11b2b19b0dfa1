"""What our options add to the law's steps: hygiene of growth and cuts. Pure; nothing of it is in the paper.

Each option mends a fault seen on real engines (docs/control.md): a window that grows while it does not bind, an engine
that fails everything and so looks idle, one congestion that is cut every period, a start that is too slow, a collapse
that is run into again and again.
"""

from __future__ import annotations

from dataclasses import dataclass

from concur_batch.control.law import Branch
from concur_batch.control.load import Load

# An epoch ends after so many cooldowns even if a pause has not taken effect: its agent may hang in a tool.
_LONGEST_EPOCH_COOLDOWNS = 10


@dataclass(slots=True)
class Growth:
    """The options, all off by default, and what they remember of the last cut.

    Windows in agents. `collapse` is the window that was cut last, `cut_to` what remained of it.
    """

    only_when_binding: bool = False
    only_when_served: bool = False
    cut_cooldown_seconds: float | None = None
    slow_start: bool = False
    remember_collapse: bool = False
    collapse: int | None = None
    cut_to: int | None = None
    _cut_at_seconds: float | None = None
    _drained_at_seconds: float | None = None

    def adopt(self, earlier: Growth) -> None:
        """Remember what `earlier` remembers: the options have changed in the middle of a run."""
        self.collapse, self.cut_to = earlier.collapse, earlier.cut_to
        self._cut_at_seconds, self._drained_at_seconds = earlier._cut_at_seconds, earlier._drained_at_seconds

    def apply(self, window: int, proposed: int, branch: Branch, load: Load, *, served: bool) -> tuple[int, Branch, str]:
        """The law's step as the options have it: the window, the branch, and a remark where they changed it.

        `served` is false where agents generate and the engine shows no sign of it.
        """
        if self._in_epoch(load):
            remark = "" if branch is Branch.HOLD else f"no {branch.value} before the last cut has had its effect"
            return window, Branch.HOLD, remark
        match branch:
            case Branch.CUT if proposed < window:  # at the least window, nothing is learned from another cut
                self.collapse, self.cut_to = window, proposed
                if self.cut_cooldown_seconds is not None:
                    self._cut_at_seconds, self._drained_at_seconds = load.seconds, None
            case Branch.GROW:
                return self._grow(window, proposed, load, served)
        return proposed, branch, ""

    def _grow(self, window: int, proposed: int, load: Load, served: bool) -> tuple[int, Branch, str]:
        if self.only_when_binding and not load.waiting:
            return window, Branch.HOLD, "no growth: nobody waits"
        if self.only_when_served and not served:
            return window, Branch.HOLD, f"no growth: {load.generating} agents generate and the engine shows none of it"
        if self.remember_collapse and self.collapse is not None and proposed >= self.collapse:
            remark = f"slowly, since a window of {self.collapse} has collapsed"
            self.collapse = max(self.collapse, window + 1)
            return window + 1, Branch.GROW, remark
        if self.slow_start and (self.cut_to is None or window < self.cut_to):
            doubled = max(proposed, min(2 * window, self.cut_to or 2 * window))
            return doubled, Branch.GROW, "slow start"
        return proposed, Branch.GROW, ""

    def _in_epoch(self, load: Load) -> bool:
        """Whether the last cut's pauses are still outstanding, or have just taken effect."""
        if self._cut_at_seconds is None or self.cut_cooldown_seconds is None:
            return False
        if self._drained_at_seconds is None and not load.marked:
            self._drained_at_seconds = load.seconds
        drained = self._drained_at_seconds
        over = drained is not None and load.seconds - drained >= self.cut_cooldown_seconds
        overdue = load.seconds - self._cut_at_seconds >= _LONGEST_EPOCH_COOLDOWNS * self.cut_cooldown_seconds
        if over or overdue:
            self._cut_at_seconds = None
            return False
        return True
