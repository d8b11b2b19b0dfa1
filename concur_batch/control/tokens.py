"""`token_window`: the histories of the agents inside fill the pool, and no more. Pure. docs/policies.md says why."""

from __future__ import annotations

from dataclasses import dataclass, field

from concur_batch.control.law import Branch
from concur_batch.control.load import Load
from concur_batch.control.loss import Loss
from concur_batch.control.policy import Policy, Verdict
from concur_batch.control.prefill import PrefillRate
from concur_batch.control.room import Room
from concur_batch.engine.signals import Sample

# The room grows by so much of itself where nobody inside generates: the pool loses those first that have waited the
# longest, and the more of those inside wait, the less does the engine have to do beside computing them anew. It falls
# with the third power of the waiting share, so that half of them waiting is worth 4 %.
_STRETCH = 0.3
# A pause takes effect at an agent's next boundary, so until then all go on: the room has to hold one more turn of each.
# Further ahead it does not pay to look: whoever is paused young is cheap to bring back.
_TURNS_AHEAD = 1


@dataclass(slots=True)
class Tokens:
    """Bounds what the agents inside have in the pool.

    A place is held through a tool wait as long as that costs less than to compute the history anew. Held, it keeps
    others out; a history that fills a share s of the pool costs s of all work while it waits, and s of a whole pool's
    prefill when it is lost.
    """

    admit_share: float
    pause_share: float
    hold_seconds: float | None
    initial_window: int
    prefill: PrefillRate = field(default_factory=PrefillRate)
    loss: Loss = field(default_factory=Loss)

    def start(self, places_held: int, pool_tokens: int | None) -> Verdict:
        if pool_tokens is None:
            return self._blind(None)
        return Verdict(None, None, Branch.HOLD, "the start", self._room(pool_tokens, 1.0, self.hold_seconds))

    def step(self, capacity: int | None, sample: Sample, load: Load) -> Verdict:
        self.prefill.add(load.seconds, sample.computed_tokens or 0)
        if load.pool_tokens is None:
            return self._blind(capacity)
        hold_seconds = self._hold_seconds(load.pool_tokens - load.shared_tokens, load)
        if hold_seconds == 0:
            # All is computed anew anyway: the engine's own queue does as well, and without pauses.
            self.loss.pass_over(load.seconds)
            return Verdict(capacity, None, Branch.HOLD, "tools take so long that no place is worth holding")
        idle_share = load.idle_tokens / load.footprint_tokens if load.footprint_tokens else 0.0
        self.loss.add(load.seconds, load.spent, idle_share, wanted=load.waiting > 0)
        room = self._room(load.pool_tokens, 1 + _STRETCH * idle_share**3, hold_seconds)
        return Verdict(capacity, None, self._branch(room, load), self._reason(room, load, idle_share), room)

    def adopt(self, earlier: Policy) -> None:
        if isinstance(earlier, Tokens):
            self.prefill, self.loss = earlier.prefill, earlier.loss

    def _blind(self, before: int | None) -> Verdict:
        return Verdict(before, self.initial_window, Branch.FIXED, "the pool's size is not known")

    def _hold_seconds(self, own_tokens: int, load: Load) -> float | None:
        """`own_tokens`: of the pool, what agents have to themselves."""
        if self.hold_seconds is not None or not self.prefill.tokens_per_second:
            return self.hold_seconds
        return load.waits.hold_seconds(max(0, own_tokens) / self.prefill.tokens_per_second)

    def _room(self, pool_tokens: int, stretch: float, hold_seconds: float | None) -> Room:
        tokens = stretch * self.loss.share * pool_tokens
        bounds = int(self.admit_share * tokens), int(self.pause_share * tokens)
        return Room(*bounds, hold_seconds, _TURNS_AHEAD, self.loss.share)

    @staticmethod
    def _branch(room: Room, load: Load) -> Branch:
        """What the window does, in the law's words."""
        if load.marked:
            return Branch.CUT
        return Branch.GROW if load.waiting and load.footprint_tokens < room.admit_tokens else Branch.HOLD

    def _reason(self, room: Room, load: Load, idle_share: float) -> str:
        reason = f"{load.footprint_tokens} tokens inside of {room.admit_tokens}, {idle_share:.0%} of them in tool waits"
        if room.hold_seconds is not None and load.waiting:
            reason += f", which hold their places {_told(room.hold_seconds)}"
        if self.loss.share < 1:
            reason += f"; agents lose {self.loss.ratio:.0%} of their prefixes, {self.loss.share:.0%} of the pool counts"
        return reason


def _told(seconds: float) -> str:
    return "throughout" if seconds == float("inf") else f"for {seconds:.1f} s"
