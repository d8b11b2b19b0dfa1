"""One control period after the other: signals in, permits and control rows out. Pure.

The whole of control but its I/O. The Ray controller and the simulated batch drive the same class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from concur_batch.control.admission import Admission
from concur_batch.control.law import Branch
from concur_batch.control.load import Load
from concur_batch.control.member import NOTHING_SPENT, Permit, Spent, State
from concur_batch.control.policies import make_policy
from concur_batch.control.policy import Policy, Verdict
from concur_batch.control.rules import make_rules
from concur_batch.control.window import Moves, Window
from concur_batch.engine.drift import LAG_PERIODS, DriftMeter
from concur_batch.engine.protocol import Reading
from concur_batch.engine.signals import Sample, Sampler
from concur_batch.report.phases import PhaseTracker
from concur_batch.workload.schema import AnyControl, Concur

# So many readings in a row must fail before a pool counts as gone: one may be lost in a busy server.
SILENT_PERIODS = 3
# With `smoothing: mean`, U is the mean of so many readings of a period.
_READINGS_TO_AVERAGE = 4

Row = dict[str, Any]
MakePolicy = Callable[[AnyControl, int], Policy]


@dataclass(slots=True)
class _Pool:
    """What one KV pool's periods are made of."""

    sampler: Sampler
    policy: Policy
    phases: PhaseTracker = field(default_factory=PhaseTracker)
    drift: DriftMeter = field(default_factory=DriftMeter)
    spent: Spent = NOTHING_SPENT  # since the last period
    silent_periods: int = 0
    drift_note: str = ""
    tells_usage: bool = False  # ever has
    tells_hits: bool = False
    looked_up_tokens: int = 0  # by the requests that told what they hit, since the start
    hit_tokens: int = 0


class Governor:
    """Control of a batch of `agents` agents over these pools. Grants nothing before `begin`.

    `make` makes a window's policy, for a benchmark's that no workload can name."""

    def __init__(
        self,
        control: AnyControl,
        pools: Sequence[str],
        agents: int,
        make: MakePolicy = make_policy,
    ) -> None:
        self.control = control
        self._make = make
        self.admission = Admission(make_rules(control), pools)
        self.last_rows: dict[str, Row] = {}
        self._agents = agents
        self._period = 0
        self._changes: list[str] = []
        self._pools = {name: _Pool(_sampler(control), make(control, agents)) for name in pools}

    @property
    def readings_per_period(self) -> int:
        """How many readings of each pool a period wants, at equal distances."""
        return _READINGS_TO_AVERAGE if _smoothing(self.control)[0] == "mean" else 1

    def prime(self, readings: Mapping[str, Reading], now_seconds: float) -> None:
        """Take the counters as they are before the batch begins, by pool: differences count from there."""
        for name, reading in readings.items():
            self._pools[name].sampler.sample([reading], now_seconds)

    def begin(self, now_seconds: float) -> list[Permit]:
        """Begin to grant. Where places are held already, after a restart, the windows go on from those."""
        windows = self.admission.windows
        verdicts = {
            name: pool.policy.start(len(windows[name].holders), windows[name].pool_tokens)
            for name, pool in self._pools.items()
        }
        return self._resize(verdicts, now_seconds)

    def spent(self, pool: str, spent: Spent) -> None:
        """Account for turns that have ended in a pool."""
        self._pools[pool].spent = self._pools[pool].spent.plus(spent)

    def note(self, change: str) -> None:
        """Put a change of the run's operation on record, in the next period's rows."""
        self._changes.append(change)

    def change(self, control: AnyControl) -> None:
        """Go on under other settings of the same policy; windows keep their size until the next period."""
        if control.policy != self.control.policy:
            raise ValueError(f"a running batch keeps its policy, {self.control.policy}")
        smoothing_changed = _smoothing(control) != _smoothing(self.control)
        self.control = control
        self.admission.set_rules(make_rules(control))
        for pool in self._pools.values():
            earlier, pool.policy = pool.policy, self._make(control, self._agents)
            pool.policy.adopt(earlier)
            if smoothing_changed:
                pool.sampler.smooth(*_smoothing(control))

    def silent(self) -> list[str]:
        """The pools that have not answered for several periods."""
        return [name for name, pool in self._pools.items() if pool.silent_periods >= SILENT_PERIODS]

    def drifts(self) -> dict[str, str]:
        """Where the engine's counters do not agree with what the requests tell, by pool: how."""
        return {name: pool.drift_note for name, pool in self._pools.items() if pool.drift_note}

    def period(
        self, readings: Mapping[str, Sequence[Reading]], now_seconds: float, late: Collection[str] = ()
    ) -> tuple[list[Permit], list[Row]]:
        """End a control period: the readings taken in it, by pool, oldest first; none where a pool did not answer.

        Of those, the `late` ones have been asked and may still answer: no sample, and no sign yet that they are gone.
        """
        permits: list[Permit] = []
        samples: dict[str, Sample] = {}
        for name, pool in self._pools.items():
            taken = self._completed(name, pool, readings.get(name, ()))
            samples[name] = pool.sampler.sample(taken, now_seconds)
            if taken:
                permits += self._hear(name, pool, samples[name], taken[-1].at_seconds, now_seconds)
            elif name not in late:
                permits += self._miss(name, pool, now_seconds)
        verdicts = {name: self._verdict(name, pool, samples[name], now_seconds) for name, pool in self._pools.items()}
        permits += self._resize(verdicts, now_seconds)
        rows = []
        for name, pool in self._pools.items():
            # Those without a pool wait for a place in any: every window's row counts them.
            count = self.admission.count
            states = {state: count(name, state) + count(None, state) for state in State}
            rows.append(self._row(name, pool, samples[name], verdicts[name], states, now_seconds))
        self.last_rows = {row["pool"]: row for row in rows}
        self._period += 1
        self._changes.clear()
        return permits, rows

    def _resize(self, verdicts: Mapping[str, Verdict], now_seconds: float) -> list[Permit]:
        capacities = {name: verdict.after for name, verdict in verdicts.items()}
        return self.admission.resize(capacities, now_seconds, {name: each.room for name, each in verdicts.items()})

    def _completed(self, name: str, pool: _Pool, taken: Sequence[Reading]) -> list[Reading]:
        """The readings, with our own account in them of an engine that never tells its KV usage.

        Locked are then the histories of the agents that generate there, as far as the pool, whose size must be known,
        holds them; hits are those that the requests tell.
        """
        pool.tells_usage |= any(reading.locked_tokens is not None for reading in taken)
        pool.tells_hits |= any(reading.device_hit_tokens_total is not None for reading in taken)
        pool.looked_up_tokens += pool.spent.input_tokens
        pool.hit_tokens += pool.spent.device_hit_tokens
        window, ours = self.admission.windows[name], dict[str, int]()
        told = [reading.pool_tokens for reading in taken if reading.pool_tokens is not None]
        pool_tokens = told[-1] if told else window.pool_tokens
        if not pool.tells_usage and pool_tokens is not None:
            ours["pool_tokens"] = pool_tokens
            ours["locked_tokens"] = min(window.generating_tokens, pool_tokens)
            if taken and not pool.tells_hits and pool.looked_up_tokens:
                pool.sampler.count_from_zero("device_hit_tokens_total", "input_tokens_total")
                ours["device_hit_tokens_total"] = pool.hit_tokens
                ours["input_tokens_total"] = pool.looked_up_tokens - pool.hit_tokens
        return [replace(reading, estimated=True, **ours) for reading in taken] if ours else list(taken)

    def _miss(self, name: str, pool: _Pool, now_seconds: float) -> list[Permit]:
        """The circuit breaker: a pool that is silent for too long is taken for gone."""
        pool.silent_periods += 1
        return self.admission.close(name, now_seconds) if pool.silent_periods == SILENT_PERIODS else []

    def _hear(self, name: str, pool: _Pool, sample: Sample, read_at_seconds: float, now_seconds: float) -> list[Permit]:
        """What a sample says of the pool's cache; and the pool is there, if the reading was begun after any doubt."""
        window = self.admission.windows[name]
        pool.silent_periods = 0
        window.pool_tokens = sample.pool_tokens or window.pool_tokens
        # A restarted engine has lost every prefix.
        window.evicted_tokens += (sample.pool_tokens or 0) if sample.restarted else (sample.evicted_tokens or 0)
        doubted = window.closed and window.closed_at_seconds < read_at_seconds
        return self.admission.reopen(name, now_seconds) if doubted else []

    def _verdict(self, name: str, pool: _Pool, sample: Sample, now_seconds: float) -> Verdict:
        window = self.admission.windows[name]
        waiting = self.admission.waiting_elsewhere + len(window.paused)
        if self.admission.suspended:  # an idle engine says nothing of the batch
            return Verdict(window.capacity, window.capacity, Branch.HOLD, "paused by the operator", window.room)
        generating = self.admission.count(name, State.ACTIVE)
        generating -= sum(member.state is State.ACTIVE for member in window.adrift.values())
        load = Load(
            now_seconds,
            generating,
            len(window.marked),
            waiting,
            window.footprint_tokens,
            window.idle_tokens,
            window.shared_tokens,
            window.pool_tokens,
            window.growth_tokens if window.growth_tokens or window.finished else None,
            pool.spent,
            self.admission.waits,
        )
        return pool.policy.step(window.capacity, sample, load)

    def _lag_periods(self, spent: Spent) -> int:
        """From a prompt's prefill to the beat that tells of its turn, at most."""
        return math.ceil(spent.longest_seconds / self.control.period_seconds) + LAG_PERIODS

    def _row(
        self, name: str, pool: _Pool, sample: Sample, verdict: Verdict, counts: Mapping[State, int], now_seconds: float
    ) -> Row:
        window = self.admission.windows[name]
        moves, window.moves = window.moves, Moves()
        spent, pool.spent = pool.spent, NOTHING_SPENT
        if not sample.estimated:  # an estimate is made of the requests' account, and cannot differ from it
            pool.drift.add(sample, spent.input_tokens, spent.device_hit_tokens, self._lag_periods(spent))
        drift = pool.drift.drift()
        pool.drift_note = drift.note if drift else ""
        waiting = counts[State.PENDING] + counts[State.PAUSED] + counts[State.QUEUED]
        hold_seconds = window.longest_tool_wait_seconds
        return {
            "period": self._period,
            "seconds": now_seconds,
            "pool": name,
            "policy": self.control.policy,
            "window_before": verdict.before,
            "window_after": verdict.after,
            "window_tokens": verdict.room.admit_tokens if verdict.room else None,
            "pool_share": verdict.room.pool_share if verdict.room else None,
            "intake_tokens": verdict.room.intake_tokens if verdict.room else None,
            "hold_seconds": hold_seconds if hold_seconds is not None and math.isfinite(hold_seconds) else None,
            "branch": verdict.branch.value,
            "reason": verdict.reason,
            "changes": "; ".join(self._changes) or None,
            "phase": pool.phases.step(sample.occupancy, sample.hit_rate, waiting).value,
            "pool_state": _state(window, pool, self.admission.suspended),
            **{field: getattr(sample, field) for field in _TOLD},
            "sample_age_seconds": sample.age_seconds,
            "request_input_tokens": spent.input_tokens,
            "request_device_hit_tokens": spent.device_hit_tokens,
            "recomputed_tokens": spent.recomputed_tokens,
            "kept_tokens": spent.kept_tokens,
            "lost_tokens": spent.lost_tokens,
            "drift_hit_rate": drift.hit_rate_difference if drift else None,
            "drift_lookups": drift.load_ratio if drift else None,
            "in_flight_requests": counts[State.ACTIVE],
            **{state.value: counts[state] for state in State if state is not State.FINISHED},
            "finished": window.finished,
            "places_held": len(window.holders),
            "marked": len(window.marked),
            "adrift": len(window.adrift),
            "history_tokens": window.history_tokens,
            "footprint_tokens": window.footprint_tokens,
            "idle_tokens": window.idle_tokens,
            "admitted_in_period": moves.admitted,
            "resumed_in_period": moves.resumed,
            "paused_in_period": moves.paused,
            "completed_in_period": moves.completed,
            "forced_in_period": moves.forced,
        }


# The fields of a sample that a control row repeats.
_TOLD = (
    *("usage", "hit_rate", "raw_usage", "raw_hit_rate", "occupancy", "stale", "estimated", "restarted"),
    *("pool_tokens", "locked_tokens", "evictable_tokens", "running_requests", "waiting_requests"),
    *("lookup_tokens", "device_hit_tokens", "host_hit_tokens", "storage_hit_tokens", "computed_tokens"),
    *("decoded_tokens", "evicted_tokens", "retractions"),
    *("offloaded_tokens", "reloaded_tokens", "offloaded_bytes", "reloaded_bytes", "reload_seconds"),
)


def _state(window: Window, pool: _Pool, suspended: bool) -> str:
    """open, suspect (a request found it down), closed (it has been silent for long) or suspended (by the operator)."""
    if pool.silent_periods >= SILENT_PERIODS:
        return "closed"
    if window.closed:
        return "suspect"
    return "suspended" if suspended else "open"


def _smoothing(control: AnyControl) -> tuple[Any, float]:
    return (control.smoothing, control.ewma_weight) if isinstance(control, Concur) else ("none", 1.0)


def _sampler(control: AnyControl) -> Sampler:
    return Sampler(*_smoothing(control))
