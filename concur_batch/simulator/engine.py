"""The simulated engine as a whole: a scheduler on a clock that others turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import takewhile

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.request import Completion, FinishReason, Request, RequestRejected
from concur_batch.simulator.scheduler import Scheduler, Step
from concur_batch.simulator.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Counters:
    """What the engine tells of itself, under SGLang's names. Tokens, but for the requests.

    Gauges: `running`, `waiting`; `kv_used` (locked, or a running request's own) + `kv_evictable` (cached, unused) +
    `kv_available` = `max_total`. Cumulative: all others. `prefill_input` and `prefill_device_hit` count first
    attempts, `prefill_compute` and `prefill_cache` every prefill. `prefill_seconds` and `decode_seconds` are those of
    all such steps.

    Of HiCache: the gauges `host_used` and `host_total`; `offloaded` to the host, `reloaded` from it, `host_dropped`:
    evicted from the device without a copy on the host, `host_evicted` from the host. `reload_seconds` are those of the
    copies, `reload_wait_seconds` what prefill batches took longer for them, and `write_back_seconds` what steps waited
    for evicted KV to be stored.
    """

    running: int
    waiting: int
    waiting_tokens: int
    kv_used: int
    kv_evictable: int
    kv_available: int
    max_total: int
    prefill_input: int
    prefill_device_hit: int
    prefill_compute: int
    prefill_cache: int
    decode: int
    evicted: int
    retracted_requests: int
    retracted_input: int
    retracted_output: int
    prefill_host_hit: int = 0
    prefill_storage_hit: int = 0
    host_used: int = 0
    host_total: int = 0
    offloaded: int = 0
    reloaded: int = 0
    host_dropped: int = 0
    host_evicted: int = 0
    reload_seconds: float = 0.0
    reload_wait_seconds: float = 0.0
    write_back_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


class EngineCore:
    """Pure: no clock, no I/O. Seconds are simulated ones, from an origin of the caller's choice."""

    def __init__(self, config: EngineConfig, cost: CostModel) -> None:
        self.config = config
        self.now_seconds = 0.0
        self._scheduler = Scheduler(config, cost)
        self._arrivals: deque[Sequence] = deque()
        self._step: Step | None = None
        self._step_end_seconds = 0.0
        self._completions: list[Completion] = []

    def submit(self, request: Request, now_seconds: float) -> Sequence:
        """Hand in a request that arrives at `now_seconds`: not before the engine's time or an earlier arrival.

        What is returned is what `outputs` is asked about.
        Raises RequestRejected where it can never run. What `max_new_tokens` exceeds the engine's room by is cut off.
        """
        limit = self._checked_new_tokens(request)
        latest = self._arrivals[-1].arrival_seconds if self._arrivals else self.now_seconds
        if now_seconds < latest:
            raise ValueError(f"request {request.rid} arrives at {now_seconds} s, before {latest} s")
        session = None
        if self.config.sessions and request.session is not None:
            session = self._scheduler.pool.tree.sessions.open(request.session)
        sequence = Sequence(request, now_seconds, limit, session)
        self._arrivals.append(sequence)
        return sequence

    def abort(self, rid_prefix: str) -> None:
        """End every request whose rid starts so; their completions come with the next `advance`."""
        for sequence in [s for s in self._arrivals if s.request.rid.startswith(rid_prefix)]:
            self._arrivals.remove(sequence)
            self._scheduler.add(sequence)
        self._scheduler.abort(rid_prefix)
        self._collect()

    def close_session(self, name: str) -> None:
        """What the cache has of it may go first from now on; requests that were submitted before are none of it."""
        self._scheduler.pool.tree.sessions.close(name)

    def advance(self, to_seconds: float) -> list[Completion]:
        """Run up to `to_seconds` (infinity: until idle); the requests that ended, in order."""
        while True:
            if self._step is not None:
                if self._step_end_seconds > to_seconds:
                    break
                self.now_seconds = self._step_end_seconds
                self._scheduler.complete(self._step, self.now_seconds)
                self._step = None
                self._collect()
            while self._arrivals and self._arrivals[0].arrival_seconds <= self.now_seconds:
                self._scheduler.add(self._arrivals.popleft())
            next_arrival = self._arrivals[0].arrival_seconds if self._arrivals else float("inf")
            horizon = min(to_seconds, next_arrival) - self.now_seconds
            self._step = self._scheduler.launch(self.now_seconds, horizon)
            self._collect()
            if self._step is not None:
                self._step_end_seconds = self.now_seconds + self._step.seconds
            else:
                moment = min(next_arrival, self._scheduler.next_room_seconds())
                if moment > to_seconds or moment == float("inf"):
                    break
                self.now_seconds = moment
        if to_seconds != float("inf"):
            self.now_seconds = max(self.now_seconds, to_seconds)
        completions, self._completions = self._completions, []
        return completions

    def next_event_seconds(self) -> float | None:
        """When a request may end at the earliest, or something must be decided that cannot be foreseen; None: idle."""
        if self._completions:
            return self.now_seconds
        arrival = self._arrivals[0].arrival_seconds if self._arrivals else None
        if self._step is None:
            moment = min(self._scheduler.next_room_seconds(), float("inf") if arrival is None else arrival)
            return moment if moment < float("inf") else None
        # An arrival during the step is seen at its end; a later one at its own time.
        end = self._step_end_seconds
        foreseen = end + self._scheduler.quiet_seconds(self._step)
        return foreseen if arrival is None else max(end, min(foreseen, arrival))

    def outputs(self, sequence: Sequence) -> int:
        """How many tokens it has made by now."""
        return self._scheduler.running.outputs(sequence)

    def step_end_seconds(self) -> float:
        """When the step in progress ends, by which tokens are made; the present time where there is none."""
        return self.now_seconds if self._step is None else self._step_end_seconds

    def counters(self) -> Counters:
        """Gauges as of now, and counters since the start."""
        scheduler, pool, totals = self._scheduler, self._scheduler.pool, self._scheduler.totals
        tiers, link = pool.tiers, scheduler.link
        scheduler.settle(self.now_seconds)
        arrived = list(takewhile(lambda s: s.arrival_seconds <= self.now_seconds, self._arrivals))
        return Counters(
            running=scheduler.resident_requests,
            waiting=len(scheduler.waiting) + len(arrived),
            waiting_tokens=scheduler.waiting_tokens + sum(s.filled_tokens for s in arrived),
            kv_used=pool.used_tokens,
            kv_evictable=pool.evictable_tokens,
            kv_available=pool.available_tokens,
            max_total=pool.total_tokens,
            prefill_input=totals.input_tokens,
            prefill_device_hit=totals.device_hit_tokens,
            prefill_compute=totals.computed_tokens,
            prefill_cache=totals.cached_tokens,
            decode=totals.decoded_tokens,
            evicted=pool.tree.evicted_tokens_total,
            retracted_requests=totals.retracted_requests,
            retracted_input=totals.retracted_input_tokens,
            retracted_output=totals.retracted_output_tokens,
            prefill_host_hit=totals.host_hit_tokens,
            host_used=tiers.host_used_tokens if tiers else 0,
            host_total=tiers.host_tokens if tiers else 0,
            offloaded=tiers.totals.offloaded if tiers else 0,
            reloaded=tiers.totals.reloaded if tiers else 0,
            host_dropped=tiers.totals.dropped if tiers else 0,
            host_evicted=tiers.totals.host_evicted if tiers else 0,
            reload_seconds=link.reload_seconds if link else 0.0,
            reload_wait_seconds=link.reload_wait_seconds if link else 0.0,
            write_back_seconds=link.write_back_seconds if link else 0.0,
            prefill_seconds=totals.prefill_seconds,
            decode_seconds=totals.decode_seconds,
        )

    def flush_cache(self) -> bool:
        """Drop the whole cache, unless requests are in progress; whether it was dropped."""
        if self._step is not None or self._arrivals or self._scheduler.waiting:
            return False
        self._scheduler.flush()
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError where the memory's accounts do not agree."""
        self._scheduler.pool.check_integrity()

    def _checked_new_tokens(self, request: Request) -> int:
        tokens = len(request.input_ids)
        if not tokens:
            raise RequestRejected("The prompt is empty.")
        if request.max_new_tokens < 1 or not len(request.output_ids):
            raise RequestRejected("max_new_tokens must be at least 1, and there must be an output.")
        if tokens >= self.config.context_tokens:
            raise RequestRejected(
                f"The input ({tokens} tokens) is longer than the model's context length "
                f"({self.config.context_tokens} tokens)."
            )
        if tokens + request.max_new_tokens > self.config.context_tokens:
            raise RequestRejected(
                "Requested token count exceeds the model's maximum context length of "
                f"{self.config.context_tokens} tokens. You requested a total of {tokens + request.max_new_tokens} "
                f"tokens: {tokens} tokens from the input messages and {request.max_new_tokens} tokens for the "
                "completion. Please reduce the number of tokens in the input messages or the completion to fit "
                "within the limit."
            )
        if tokens >= self.config.max_input_tokens:
            raise RequestRejected(
                f"Input length ({tokens} tokens) exceeds the maximum allowed length "
                f"({self.config.max_input_tokens} tokens). Use a shorter input or enable --allow-auto-truncate."
            )
        if request.ignore_eos and len(request.output_ids) < request.max_new_tokens:
            raise RequestRejected("ignore_eos needs an output as long as max_new_tokens.")
        return min(request.max_new_tokens, self.config.max_request_tokens - tokens - 1)

    def _collect(self) -> None:
        for sequence in self._scheduler.take_finished():
            self._completions.append(self._completion(sequence))

    def _completion(self, sequence: Sequence) -> Completion:
        reason: FinishReason = "stop"
        if sequence.outcome == "abort":
            reason = "abort"
        elif sequence.outputs >= sequence.max_new_tokens:
            reason = "length"
        return Completion(
            rid=sequence.request.rid,
            output_ids=sequence.request.output_ids[: sequence.outputs],
            finish_reason=reason,
            message=sequence.message,
            prompt_tokens=sequence.input_tokens,
            cached_tokens=sequence.cached_tokens,
            retractions=max(0, sequence.attempts - 1),
            arrival_seconds=sequence.arrival_seconds,
            scheduled_seconds=sequence.scheduled_seconds,
            first_token_seconds=sequence.first_token_seconds,
            end_seconds=self.now_seconds,
            host_cached_tokens=sequence.host_cached_tokens,
        )
