"""The batch that decodes: all its sequences advance together, so that a step takes no loop over them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from concur_batch.simulator.config import CLIP_NEW_TOKENS
from concur_batch.simulator.sequence import Sequence


@dataclass(slots=True)
class _Seat:
    """What is known of a member since it sat down: its place in the order, the step that is its last, and how many
    steps' rows and outputs its own account has."""

    order: int
    last_step: int
    rows: int
    steps: int


class RunningBatch:
    """Sequences in the order in which they came. Iterating brings their own accounts up to date.

    A decode step is `grow`n, which takes its rows, and `advance`d at its end. What it needs and does is kept as sums
    and by the remainders of the rows after whole pages.
    """

    def __init__(self, page_size: int) -> None:
        self.kv_tokens = 0  # rows of all
        self._page_size = page_size
        self._rows = self._steps = 0  # steps whose rows are taken, and steps done
        self._seats: dict[Sequence, _Seat] = {}
        self._orders = 0
        self._ends: list[tuple[int, int, Sequence]] = []  # heap of (last step, order); some have left meanwhile
        self._remainders: Counter[int] = Counter()  # of rows without those of steps, after whole pages
        # By whether they ignore the end token: members, and the tokens that they may still generate.
        self._members = {False: 0, True: 0}
        self._allowed = {False: 0, True: 0}
        self._long = 0  # members with a longer allowance than the estimate looks ahead

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[Sequence]:
        for sequence, seat in self._seats.items():
            self._settle(sequence, seat)
        return iter(list(self._seats))

    def outputs(self, sequence: Sequence) -> int:
        """How many tokens it has made, whether it is a member or not."""
        seat = self._seats.get(sequence)
        return sequence.outputs + (0 if seat is None else self._steps - seat.steps)

    def add(self, sequence: Sequence) -> None:
        """At the end of the order, between steps."""
        self._orders += 1
        seat = _Seat(self._orders, self._steps + sequence.remaining_outputs, self._rows, self._steps)
        self._seats[sequence] = seat
        heapq.heappush(self._ends, (seat.last_step, seat.order, sequence))
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Let it go, with its own account up to date."""
        self._settle(sequence, self._seats.pop(sequence))
        self._count(sequence, -1)

    def sort(self, key: Callable[[Sequence], tuple[int, ...]]) -> None:
        """Put them into another order, equals as they are."""
        members = sorted(self, key=key)
        for sequence in members:
            self.remove(sequence)
        self._ends.clear()
        for sequence in members:
            self.add(sequence)

    def grow(self, steps: int) -> None:
        """So many steps take their rows."""
        self._rows += steps
        self.kv_tokens += steps * len(self)

    def advance(self, steps: int) -> list[Sequence]:
        """So many steps, which have taken their rows, are done; those that are done with them leave, in order."""
        self._steps += steps
        for ignores_eos, members in self._members.items():
            self._allowed[ignores_eos] -= steps * members
        ended = []
        while self._ends and self._ends[0][0] <= self._steps:
            _, order, sequence = heapq.heappop(self._ends)
            if self._is_seated(sequence, order):
                ended.append((order, sequence))
        ended.sort(key=lambda entry: entry[0])
        for _, sequence in ended:
            self.remove(sequence)
        return [sequence for _, sequence in ended]

    def least_remaining(self) -> int:
        """Steps, from the last one done, after which somebody ends."""
        while not self._is_seated(self._ends[0][2], self._ends[0][1]):
            heapq.heappop(self._ends)
        return self._ends[0][0] - self._steps

    def need(self, steps: int) -> int:
        """Pool tokens, in whole pages, that `steps` more steps take."""
        page = self._page_size
        if page == 1:
            return steps * len(self)
        pages = 0
        for remainder, count in self._remainders.items():
            rows = (remainder + self._rows) % page
            pages += count * (-(-(rows + steps) // page) + (-rows // page))
        return pages * page

    def expected_tokens(self, ratio: float) -> float:
        """What they are expected to generate still: `ratio` of their allowances; all, of those that ignore the end."""
        if not self._long:
            return self._allowed[True] + self._allowed[False] * ratio
        clipped = {False: 0, True: 0}
        for sequence in self:
            clipped[sequence.request.ignore_eos] += sequence.allowance
        return clipped[True] + clipped[False] * ratio

    def _settle(self, sequence: Sequence, seat: _Seat) -> None:
        """Bring a member's own account up to date."""
        sequence.kv_tokens += self._rows - seat.rows
        sequence.outputs += self._steps - seat.steps
        seat.rows, seat.steps = self._rows, self._steps

    def _count(self, sequence: Sequence, members: int) -> None:
        """One more member, or one less, as it is now."""
        ignores_eos = sequence.request.ignore_eos
        self._members[ignores_eos] += members
        self._allowed[ignores_eos] += members * (sequence.max_new_tokens - sequence.outputs)
        self._long += members * (sequence.max_new_tokens > CLIP_NEW_TOKENS)
        self.kv_tokens += members * sequence.kv_tokens
        if self._page_size > 1:
            self._remainders[(sequence.kv_tokens - self._rows) % self._page_size] += members

    def _is_seated(self, sequence: Sequence, order: int) -> bool:
        seat = self._seats.get(sequence)
        return seat is not None and seat.order == order
