"""`token_window`: the histories of the agents inside fill the pool, and no more. Pure. docs/policies.md says why."""

from __future__ import annotations

from dataclasses import dataclass, field

from concur_batch.control.law import Branch
from concur_batch.control.load import Load
from concur_batch.control.loss import Loss
from concur_batch.control.policy import Policy, Verdict
from concur_batch.control.prefill import PrefillRate
from concur_batch.control.recent import Recent
from concur_batch.control.room import Room
from concur_batch.engine.signals import Sample

# The room grows by so much of itself where nobody inside generates: the pool loses those first that have waited the
# longest, and the more of those inside wait, the less does the engine have to do beside computing them anew. It falls
# with the third power of the waiting share, so that half of them waiting is worth 4 %.
_STRETCH = 0.3
# Of the pool, what may come in in a period, which is all at the start: before anybody has had a turn all histories are
# short, and more agents would only queue in the engine, grow all at once, and have to be paused.
_INTAKE_SHARE = 1 / 8
# The same after the start, until somebody has had a second turn or has ended.
_BLIND_INTAKE_SHARE = 1 / 64
# An engine has a backlog if it has begun with fewer than this of the requests that have been sent: beats tell late of
# one that has ended.
_SEEN_SHARE = 0.5
# A pause takes effect at an agent's next boundary, so until then all go on: the room has to hold one more turn of each.
# Further ahead it does not pay to look where an engine mostly decodes: whoever is paused young is cheap to bring back.
# To one that prefills all the time every pause is a loss, and a larger batch no gain: there it looks so many turns
# further, and less with the third power of the share of its time.
_CAUTION = 2.0


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
    idle_share: Recent = field(default_factory=Recent)  # agents of a small batch all wait, and all return, together
    busy_share: Recent = field(default_factory=Recent)

    def start(self, places_held: int, pool_tokens: int | None) -> Verdict:
        if pool_tokens is None:
            return self._blind(None)
        room = self._room(pool_tokens, 1.0, self.hold_seconds, int(_INTAKE_SHARE * pool_tokens))
        return Verdict(None, None, Branch.HOLD, "the start", room)

    def step(self, capacity: int | None, sample: Sample, load: Load) -> Verdict:
        busy_share = self.prefill.add(load.seconds, sample.computed_tokens or 0, load.spent.prefill_tokens_per_second)
        self.busy_share.add(load.seconds, busy_share)
        if load.pool_tokens is None:
            return self._blind(capacity)
        hold_seconds = self._hold_seconds(load.pool_tokens - load.shared_tokens, load)
        if hold_seconds == 0:
            # All is computed anew anyway: the engine's own queue does as well, and without pauses.
            self.loss.pass_over(load.seconds)
            return Verdict(capacity, None, Branch.HOLD, "tools take so long that no place is worth holding")
        idle_share = self.idle_share.add(
            load.seconds, load.idle_tokens / load.footprint_tokens if load.footprint_tokens else 0.0
        )
        self.loss.add(load.seconds, load.spent, idle_share, wanted=load.waiting > 0)
        intake_tokens = _intake_tokens(load.pool_tokens, sample, load)
        room = self._room(load.pool_tokens, 1 + _STRETCH * idle_share**3, hold_seconds, intake_tokens)
        return Verdict(capacity, None, self._branch(room, load), self._reason(room, load, idle_share), room)

    def adopt(self, earlier: Policy) -> None:
        if isinstance(earlier, Tokens):
            self.prefill, self.loss = earlier.prefill, earlier.loss
            self.idle_share, self.busy_share = earlier.idle_share, earlier.busy_share

    def _blind(self, before: int | None) -> Verdict:
        return Verdict(before, self.initial_window, Branch.FIXED, "the pool's size is not known")

    def _hold_seconds(self, own_tokens: int, load: Load) -> float | None:
        """`own_tokens`: of the pool, what agents have to themselves."""
        if self.hold_seconds is not None or not self.prefill.tokens_per_second:
            return self.hold_seconds
        return load.waits.hold_seconds(max(0, own_tokens) / self.prefill.tokens_per_second)

    def _room(self, pool_tokens: int, stretch: float, hold_seconds: float | None, intake_tokens: int | None) -> Room:
        tokens = stretch * self.loss.share * pool_tokens
        turns_ahead = 1 + _CAUTION * self.busy_share.mean**3
        bounds = int(self.admit_share * tokens), int(self.pause_share * tokens)
        return Room(*bounds, hold_seconds, turns_ahead, self.loss.share, intake_tokens)

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
        if room.intake_tokens == 0:
            reason += "; requests wait in the engine, so no more come in than leave"
        if self.loss.share < 1:
            reason += f"; agents lose {self.loss.ratio:.0%} of their prefixes, {self.loss.share:.0%} of the pool counts"
        return reason


def _intake_tokens(pool_tokens: int, sample: Sample, load: Load) -> int | None:
    """How much may come in in the next period: no bound where nobody wants in, and no more than leaves while requests
    wait in the engine."""
    if not load.waiting:
        return None
    if _has_backlog(sample, load):
        return 0
    return int((_BLIND_INTAKE_SHARE if load.growth_tokens is None else _INTAKE_SHARE) * pool_tokens)


def _has_backlog(sample: Sample, load: Load) -> bool:
    """Whether requests wait in the engine: in its queue, or unseen, since it looks at them between two steps only."""
    unseen = sample.running_requests is not None and sample.running_requests < _SEEN_SHARE * load.generating
    return sample.stale or unseen or bool(sample.waiting_requests)


def _told(seconds: float) -> str:
    return "throughout" if seconds == float("inf") else f"for {seconds:.1f} s"
