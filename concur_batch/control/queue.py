"""Agents that wait for a place, and who of them is next. Pure.

Next is: a paused agent that has waited too long; then the highest priority; then the group with the least places for
its share; then the nearest deadline; then the order of the queue. Equal ones go as they began to wait.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from concur_batch.control.member import Member
from concur_batch.control.rules import Rules
from concur_batch.workload.schema import ResumeOrder

# Of two waiting agents, the one with the lesser rank is next.
Rank = tuple[float, ...]
_Key = tuple[int, str]  # priority, group


@dataclass(slots=True)
class _Lane:
    """Agents of one priority and group, by ticket: an ordered dict, since a plain one finds its first entry slowly
    after many were taken from the front. `heap` sorts them by `order`; it is built when one is asked for that needs
    it (None: not yet), and keeps entries of agents that are gone until they come up."""

    members: OrderedDict[str, Member] = field(default_factory=OrderedDict)
    heap: list[tuple[tuple[float, float, int], str]] = field(default_factory=list)
    order: ResumeOrder | None = None


class Queue:
    """One queue, kept in a lane for each priority and group, so that the next one is found without looking at all.

    `place` orders whole queues among each other: paused agents (0) come before new ones (1).
    """

    def __init__(self, rules: Rules, place: int, held: Mapping[str, int]) -> None:
        self.rules = rules
        self._place = place
        self._held = held  # places held, by group: the admission's own account
        self._lanes: dict[_Key, _Lane] = {}
        self._deadlines = False

    def __len__(self) -> int:
        return sum(len(lane.members) for lane in self._lanes.values())

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(lane.members for lane in self._lanes.values())

    def add(self, agent: str, member: Member) -> None:
        """Put the agent into its lane, behind those who have waited longer."""
        key = (member.traits.priority, member.traits.group)
        lane = self._lanes.setdefault(key, _Lane())
        late = bool(lane.members) and next(reversed(lane.members.values())).ticket > member.ticket
        lane.members[agent] = member
        if late:  # it comes from another queue
            lane.members = OrderedDict(sorted(lane.members.items(), key=lambda item: item[1].ticket))
        if lane.order == self._order:
            heapq.heappush(lane.heap, (self._rank(member), agent))
        else:  # the rules have changed since
            lane.order = None
        self._deadlines |= member.traits.deadline_seconds is not None

    def remove(self, agent: str, member: Member) -> None:
        """Take the agent out; nothing happens where it is not in."""
        key = (member.traits.priority, member.traits.group)
        lane = self._lanes.get(key)
        if lane is not None and lane.members.pop(agent, None) is not None and not lane.members:
            del self._lanes[key]

    def next(self, now_seconds: float) -> tuple[Rank, str] | None:
        """The agent that is next, with its rank among the next ones of other queues."""
        return min((self._next_of(lane, now_seconds) for lane in self._lanes.items()), default=None)

    def _next_of(self, keyed: tuple[_Key, _Lane], now_seconds: float) -> tuple[Rank, str]:
        (priority, group), lane = keyed
        members = lane.members
        oldest = next(iter(members))
        age = self.rules.resume_age_seconds
        paused = self._place == 0
        if paused and age is not None and now_seconds - members[oldest].since_seconds >= age:
            return (0.0, float(members[oldest].ticket)), oldest
        agent = self._first(lane, oldest)
        share = self._held.get(group, 0) / self.rules.shares.get(group, 1.0)
        # A request cap serves first come, first served, whether an agent is new or returns.
        place = 0 if self.rules.per_generation else self._place
        return (1.0, -priority, share, place, *self._rank(members[agent])), agent

    @property
    def _order(self) -> ResumeOrder:
        return "oldest" if self._place or self.rules.per_generation else self.rules.resume_order

    def _first(self, lane: _Lane, oldest: str) -> str:
        members, order = lane.members, self._order
        if not self._deadlines and order == "oldest":
            return oldest
        if not self._deadlines and order == "newest":
            return next(reversed(members))
        if lane.order != order or len(lane.heap) > 2 * len(members):
            lane.heap = [(self._rank(member), agent) for agent, member in members.items()]
            heapq.heapify(lane.heap)
            lane.order = order
        while True:
            (*_, ticket), agent = lane.heap[0]
            if agent in members and members[agent].ticket == ticket:
                return agent
            heapq.heappop(lane.heap)

    def _rank(self, member: Member) -> tuple[float, float, int]:
        """The nearest deadline, then the order of the queue, then who began to wait first."""
        deadline = math.inf if member.traits.deadline_seconds is None else member.traits.deadline_seconds
        match self._order:
            case "oldest":
                return deadline, 0.0, member.ticket
            case "newest":
                return deadline, -member.ticket, member.ticket
            case "smallest":
                return deadline, member.context_tokens, member.ticket
            case "largest":
                return deadline, -member.context_tokens, member.ticket
