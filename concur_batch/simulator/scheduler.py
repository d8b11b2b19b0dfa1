"""Continuous batching: who is prefilled, who decodes, and who is put back when the KV pool runs dry.

The rules are SGLang 0.5.23's with its default flags: prefill comes before decode, prompts are taken in the queue's
order and in chunks, and the first one that does not fit stops those behind it. A step is launched, which takes its
memory, and completed later, which has its effects: what arrives in between waits for the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.link import HostLink
from concur_batch.simulator.ordering import MAX_ORDERED, by_longest_prefix
from concur_batch.simulator.pool import KvPool
from concur_batch.simulator.ratio import NewTokenRatio
from concur_batch.simulator.running import RunningBatch
from concur_batch.simulator.sequence import Sequence


@dataclass(slots=True)
class Totals:
    """Cumulative counters, in tokens but for `retracted_requests`, as the engine's metrics have them.

    `input_tokens`, `device_hit_tokens` and `host_hit_tokens` count first attempts only; `computed_tokens` and
    `cached_tokens` count every prefill, recomputation after a retraction included. `prefill_seconds` and
    `decode_seconds` are those of all such steps.
    """

    input_tokens: int = 0
    device_hit_tokens: int = 0
    host_hit_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    decoded_tokens: int = 0
    retracted_requests: int = 0
    retracted_input_tokens: int = 0
    retracted_output_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(slots=True)
class Step:
    """A forward pass in progress; or, as nothing can interrupt them, `decode_steps` passes of the same batch."""

    seconds: float
    prefill: list[Sequence] = field(default_factory=list)
    decode_steps: int = 0


class Scheduler:
    """The engine's queue, batch and memory. `launch` and `complete` alternate; time comes in as arguments."""

    def __init__(self, config: EngineConfig, cost: CostModel) -> None:
        self.config = config
        self.cost = cost
        self.pool = KvPool(config)
        self.link = HostLink(cost, self.pool.tiers) if self.pool.tiers is not None else None
        self.waiting: deque[Sequence] = deque()
        self.running = RunningBatch(config.page_size)
        self.waiting_tokens = 0  # that a prefill must make resident
        self.chunked: Sequence | None = None
        self.totals = Totals()
        self.ratio = NewTokenRatio(config.conservativeness)
        self._finished: list[Sequence] = []
        self._admitting: list[Sequence] = []  # in the launched prefill, the chunked one included
        # SGLang asks nobody again after a refusal until a request leaves the batch.
        self._refused = False
        self._passes = 0
        self._aborting = False  # somebody who is resident is to be aborted

    def add(self, sequence: Sequence) -> None:
        """Queue it, at the tail."""
        self.waiting.append(sequence)
        self.waiting_tokens += sequence.filled_tokens

    def abort(self, rid_prefix: str) -> None:
        """End every request whose rid starts so: waiting ones at once, running ones after the step they are in."""
        queued = [s for s in self.waiting if s.request.rid.startswith(rid_prefix)]
        if queued:
            self.waiting = deque(s for s in self.waiting if not s.request.rid.startswith(rid_prefix))
        for sequence in queued:
            self.waiting_tokens -= sequence.filled_tokens
            self._end_aborted(sequence, "Abort in waiting queue")
        for sequence in (*self.running, *self._prefilling()):
            if sequence.request.rid.startswith(rid_prefix):
                self._aborting = sequence.aborting = True

    @property
    def resident_requests(self) -> int:
        """How many hold KV rows."""
        return len(self.running) + len(self._prefilling())

    def _prefilling(self) -> list[Sequence]:
        paused = [self.chunked] if self.chunked is not None and self.chunked not in self._admitting else []
        return [*self._admitting, *paused]

    def take_finished(self) -> list[Sequence]:
        """Those that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def launch(self, now_seconds: float, max_seconds: float) -> Step | None:
        """Start the next step; None when there is nothing to do.

        Decode steps which nothing interrupts are taken together while they fit into `max_seconds`, at least one.
        """
        self.settle(now_seconds)
        horizon = min(max_seconds, self._next_store_seconds() - now_seconds)
        step = self._launch_prefill(now_seconds) or self._launch_decode(now_seconds, horizon)
        if step is None and not self.waiting:
            self.ratio.reset()
        return step

    def complete(self, step: Step, now_seconds: float) -> None:
        """Let the launched step have its effects, at its end."""
        if step.decode_steps:
            self.totals.decode_seconds += step.seconds
            self._complete_decode(step.decode_steps)
        else:
            self.totals.prefill_seconds += step.seconds
            self._complete_prefill(step.prefill, now_seconds)
        if self._aborting:
            self._drop_aborting()
        if self.link is not None:
            self.link.send(now_seconds)

    def settle(self, now_seconds: float) -> None:
        """What has arrived on the host by now may be evicted from the device."""
        if self.link is not None:
            self.link.settle(now_seconds)

    def next_room_seconds(self) -> float:
        """When those who wait may find room though nothing runs: KV on its way to the host is locked until then."""
        return self._next_store_seconds() if self.waiting else float("inf")

    def _next_store_seconds(self) -> float:
        return self.link.next_arrival_seconds() if self.link is not None else float("inf")

    def flush(self) -> None:
        """Drop the cache, which nobody may be using."""
        self.settle(float("inf"))
        self.pool.tree.clear()

    # Prefill

    def _launch_prefill(self, now_seconds: float) -> Step | None:
        if not self.running:
            self._refused = False
        if self.chunked is None and (self._refused or not self.waiting):
            return None
        places = self.config.running_limit - len(self.running)
        if self.chunked is None and places <= 0:
            self._refused = True
            return None
        self._order_waiting()

        compute_left = self.config.chunked_prefill_tokens
        input_left = self.config.max_prefill_tokens
        loaded_tokens = 0
        reserved = self.running.expected_tokens(self.ratio.current)
        batch: list[tuple[Sequence, int]] = []  # and how many tokens of it to compute

        if self.chunked is not None:
            sequence = self.chunked
            # Nobody decodes between chunks, so the rows that its admission found are still there. The estimate may
            # say no by now, yet a prompt half done must go on to release what it holds.
            estimate = int(self.pool.reachable_tokens - reserved)
            count = self._chunk(sequence, min(compute_left, estimate))
            if count <= 0:
                count = self._chunk(sequence, compute_left)
            batch.append((sequence, count))
            reserved += self._reservation(sequence, count)
            compute_left -= self.pool.in_pages(count)
            input_left -= self.pool.in_pages(count)

        while self.waiting and min(compute_left, input_left) > 0:
            if len(batch) >= places:
                self._refused = True
                break
            sequence = self.waiting[0]
            self.pool.attach(sequence)  # locks its prefix, which from here on is nobody's to evict
            left = sequence.filled_tokens - sequence.kv_tokens
            needed = left + sequence.allowance + self.config.page_size
            if needed >= self.pool.reachable_tokens - reserved:
                self.pool.release(sequence)
                self._refused = bool(batch or self.running)
                break
            if self._chunk(sequence, compute_left) <= 0:
                self.pool.release(sequence)
                break
            loaded = self.pool.load(sequence)
            loaded_tokens += loaded
            count = self._chunk(sequence, compute_left)
            self.waiting.popleft()
            self.waiting_tokens -= sequence.filled_tokens
            self._count_admission(sequence, loaded, now_seconds)
            batch.append((sequence, count))
            reserved += self._reservation(sequence, count)
            compute_left -= self.pool.in_pages(count)
            input_left -= self.pool.in_pages(count)
            if self.pool.reachable_tokens - reserved <= 0:
                self._refused = True
                break

        if not batch:
            return None
        seconds = self.cost.prefill_seconds((sequence.kv_tokens, count) for sequence, count in batch)
        # Rows are taken only now that the prefixes of all who were let in are locked.
        for sequence, count in batch:
            self._extend(sequence, count)
        self._admitting = [sequence for sequence, _ in batch]
        if self.link is not None:
            seconds = self.link.step_seconds(seconds, loaded_tokens, now_seconds)
        return Step(seconds, prefill=self._admitting)

    def _complete_prefill(self, batch: list[Sequence], now_seconds: float) -> None:
        self._admitting = []
        for sequence in batch:
            self.pool.publish(sequence)
            if sequence is self.chunked:
                continue
            sequence.outputs += 1
            if sequence.first_token_seconds is None:
                sequence.first_token_seconds = now_seconds
            if sequence.remaining_outputs <= 0:
                self._end(sequence)
            else:
                self.running.add(sequence)

    def _chunk(self, sequence: Sequence, limit: int) -> int:
        """How many tokens to compute now: all that are left, or as many as fit and end on a page."""
        begin = sequence.kv_tokens + sequence.host_tokens
        left = sequence.filled_tokens - begin
        if self.pool.in_pages(left) <= limit:
            return left
        end = (begin + limit) // self.config.page_size * self.config.page_size
        return min(left, end - begin)

    def _reservation(self, sequence: Sequence, count: int) -> int:
        """What letting it compute `count` tokens now may take: also its output, if they are its last."""
        last = sequence.kv_tokens + count == sequence.filled_tokens
        return self.pool.in_pages(count) + self.config.page_size + (sequence.allowance if last else 0)

    def _extend(self, sequence: Sequence, count: int) -> None:
        """Take rows for `count` more prompt tokens."""
        self.totals.computed_tokens += count
        if sequence.attempts == 1:
            self.totals.input_tokens += count
        self.pool.grow(sequence, count)
        if sequence.kv_tokens < sequence.filled_tokens:
            self.chunked = sequence
        elif sequence is self.chunked:
            self.chunked = None

    def _count_admission(self, sequence: Sequence, loaded_tokens: int, now_seconds: float) -> None:
        sequence.attempts += 1
        self.totals.cached_tokens += sequence.prefix_tokens
        if sequence.attempts == 1:
            sequence.host_cached_tokens = loaded_tokens
            sequence.cached_tokens = sequence.prefix_tokens - loaded_tokens
            sequence.scheduled_seconds = now_seconds
            self.totals.device_hit_tokens += sequence.cached_tokens
            self.totals.host_hit_tokens += loaded_tokens

    def _order_waiting(self) -> None:
        if self.config.schedule == "lpm" and len(self.waiting) <= MAX_ORDERED:
            self.waiting = deque(by_longest_prefix(self.waiting, self.pool))
        elif self.config.eviction == "lru":
            self._refresh_waiting_prefixes()

    def _refresh_waiting_prefixes(self) -> None:
        if not self.waiting or not self.config.refresh_passes:
            return
        if self._passes % self.config.refresh_passes == 0:
            count = min(len(self.waiting), self.config.refresh_requests)
            # The head last, so that it is evicted last.
            for index in range(count - 1, -1, -1):
                self.pool.match(self.waiting[index])
        self._passes += 1

    # Decode

    def _launch_decode(self, now_seconds: float, max_seconds: float) -> Step | None:
        if not self.running:
            return None
        retracted = self._make_room()
        waited_seconds = self._wait_for_room(now_seconds)
        steps = self.quiet_steps(max_seconds)
        self.ratio.decay(steps - 1 if retracted else steps)
        self.pool.take(self.running.need(steps))
        seconds = self.cost.decode_seconds(len(self.running), self.running.kv_tokens + len(self.running), steps)
        self.running.grow(steps)
        if self.link is not None:
            seconds = self.link.step_seconds(seconds, 0, now_seconds + waited_seconds)
        return Step(waited_seconds + seconds, decode_steps=steps)

    def _wait_for_room(self, now_seconds: float) -> float:
        """Where not even one can decode since KV on its way to the host is locked: wait for that; for how long.

        SGLang would end the request with an error. Nobody plans a run with a pool so small.
        """
        until_seconds = now_seconds
        while self.running.need(1) > self.pool.reachable_tokens and self._next_store_seconds() < float("inf"):
            until_seconds = self._next_store_seconds()
            self.settle(until_seconds)
        return until_seconds - now_seconds

    def _complete_decode(self, steps: int) -> None:
        self.totals.decoded_tokens += steps * len(self.running)
        ended = self.running.advance(steps)
        for sequence in ended:
            self._end(sequence)
        if ended:
            self._refused = False

    def quiet_steps(self, max_seconds: float, after_steps: int = 0) -> int:
        """How many decode steps in a row neither finish a request nor run out of rows before their end.

        At least 1, and beyond it no more than fit into `max_seconds`. `after_steps` are in progress already.
        """
        batch = len(self.running)
        most = self.running.least_remaining() - after_steps
        if most <= 1 or self._prefill_is_next():
            return 1
        room = self.pool.quiet_tokens
        if self.running.need(most) > room:
            most = _largest(lambda steps: self.running.need(steps) <= room, most)
        kv_tokens = self.running.kv_tokens + batch
        if self.cost.decode_seconds(batch, kv_tokens, most) > max_seconds:
            most = _largest(lambda steps: self.cost.decode_seconds(batch, kv_tokens, steps) <= max_seconds, most)
        return max(1, most)

    def quiet_seconds(self, step: Step) -> float:
        """Beyond the launched `step`: how long no request can finish, as far as is known now."""
        if not step.decode_steps or self._prefill_is_next() or self._aborting:
            return 0.0
        if self.running.least_remaining() <= step.decode_steps:
            return 0.0
        if self.running.need(1) > self.pool.reachable_tokens:
            return 0.0  # somebody goes back to the queue, and the next step is shorter
        steps = self.quiet_steps(float("inf"), after_steps=step.decode_steps)
        batch = len(self.running)
        return self.cost.decode_seconds(batch, self.running.kv_tokens + batch, steps)

    def _prefill_is_next(self) -> bool:
        """Whether a prefill would be tried before the next decode step."""
        return self.chunked is not None or (bool(self.waiting) and not self._refused)

    def _make_room(self) -> bool:
        """Put requests back into the queue until the others can decode; whether any was.

        Those with the fewest outputs go first, among equals those with the longest prompt. One stays: it fits alone.
        """
        if self.running.need(1) <= self.pool.reachable_tokens:
            return False
        self.running.sort(key=lambda sequence: (-sequence.outputs, sequence.input_tokens))
        self._refused = False
        for sequence in reversed([*self.running][1:]):
            self._retract(sequence)
            if self.running.need(1) <= self.pool.reachable_tokens:
                break
        self.ratio.after_retraction(self.running)
        return True

    def _retract(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.totals.retracted_requests += 1
        self.totals.retracted_input_tokens += sequence.input_tokens
        self.totals.retracted_output_tokens += sequence.outputs
        self.pool.release(sequence)
        self.add(sequence)

    # Ends

    def _end(self, sequence: Sequence) -> None:
        self.pool.publish(sequence)
        if sequence.outcome == "done":
            self.pool.tag(sequence)
        self.pool.release(sequence)
        self._finished.append(sequence)

    def _end_aborted(self, sequence: Sequence, message: str) -> None:
        sequence.outcome = "abort"
        sequence.message = message
        self._end(sequence)

    def _drop_aborting(self) -> None:
        if self.chunked is not None and self.chunked.aborting:
            self._end_aborted(self.chunked, "Aborted")
            self.chunked = None
        for sequence in self.running:
            if sequence.aborting:
                self.running.remove(sequence)
                self._end_aborted(sequence, "Aborted")
        self._refused = self._aborting = False


def _largest(holds: Callable[[int], bool], below: int) -> int:
    """The largest count under `below` for which `holds`, which is true up to some count and false above; at least 1."""
    good, bad = 1, below
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
