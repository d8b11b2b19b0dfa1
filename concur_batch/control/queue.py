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

from concur_batch.control.member import Member
from concur_batch.control.rules import Rules
from concur_batch.workload.schema import ResumeOrder

# Of two waiting agents, the one with the lesser rank is next.
Rank = tuple[float, ...]
_Key = tuple[int, str]  # priority, group
# So many outdated entries a heap of lanes may have beside one for each.
_SPARE_ENTRIES = 16


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
        self._rules = rules
        self._place = place
        self._held = held  # places held, by group: the admission's own account
        self._members: OrderedDict[str, Member] = OrderedDict()  # by ticket
        self._lanes: dict[_Key, _Lane] = {}
        self._lanes_of: dict[str, set[_Key]] = {}  # by group
        # The lanes by rank, found lazily: an entry's rank may be lower than its lane's is now, never higher.
        self._heap: list[tuple[Rank, _Key]] = []
        self._deadlines = False

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    @property
    def rules(self) -> Rules:
        """By which the next one is chosen."""
        return self._rules

    @rules.setter
    def rules(self, rules: Rules) -> None:
        self._rules = rules
        for lane in self._lanes.values():
            lane.order = None
        self._heap = [(self._rank_of(key)[0], key) for key in self._lanes]
        heapq.heapify(self._heap)

    def add(self, agents: Mapping[str, Member]) -> None:
        """Put agents into their lanes, behind those who have waited longer."""
        lanes: dict[_Key, _Lane] = {}
        late = _append(self._members, agents)
        for agent, member in agents.items():
            key = (member.traits.priority, member.traits.group)
            lane = lanes[key] = self._lanes.setdefault(key, _Lane())
            self._lanes_of.setdefault(member.traits.group, set()).add(key)
            late |= _append(lane.members, {agent: member})
            if lane.order == self._order:
                heapq.heappush(lane.heap, (self._rank(member), agent))
            else:
                lane.order = None
            self._deadlines |= member.traits.deadline_seconds is not None
        if late:  # they come from another queue
            _sort(self._members)
            for lane in lanes.values():
                _sort(lane.members)
        for key in lanes:
            self._push(key)

    def remove(self, agent: str, member: Member) -> None:
        """Take the agent out; nothing happens where it is not in."""
        if self._members.pop(agent, None) is None:
            return
        key = (member.traits.priority, member.traits.group)
        del self._lanes[key].members[agent]
        if not self._lanes[key].members:
            del self._lanes[key]
            self._lanes_of[key[1]].discard(key)

    def touch(self, group: str) -> None:
        """The group holds fewer places than before: its turn may come sooner."""
        for key in self._lanes_of.get(group, ()):
            self._push(key)

    def next(self, now_seconds: float, *, before_paused: bool = False) -> tuple[Rank, str] | None:
        """The agent that is next, with its rank among the next ones of other queues; `before_paused`: as if this queue
        came before that of the paused."""
        if not self._members:
            return None
        oldest, member = next(iter(self._members.items()))
        age = self._rules.resume_age_seconds
        if self._place == 0 and age is not None and now_seconds - member.since_seconds >= age:
            return (0.0, float(member.ticket)), oldest
        while True:
            rank, key = self._heap[0]
            if key not in self._lanes:
                heapq.heappop(self._heap)
                continue
            found = self._rank_of(key)
            if found[0] <= rank:
                (*ahead, _, deadline, order, ticket), agent = found
                return ((*ahead, -1.0, deadline, order, ticket), agent) if before_paused else found
            heapq.heapreplace(self._heap, (found[0], key))

    def _push(self, key: _Key) -> None:
        if len(self._heap) > 2 * len(self._lanes) + _SPARE_ENTRIES:
            self._heap = [(self._rank_of(key)[0], key) for key in self._lanes]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (self._rank_of(key)[0], key))

    def _rank_of(self, key: _Key) -> tuple[Rank, str]:
        """A lane's rank, which is that of its first agent, and the agent."""
        (priority, group), lane = key, self._lanes[key]
        agent = self._first(lane)
        share = self._held.get(group, 0) / self._rules.shares.get(group, 1.0)
        # A request cap serves first come, first served, whether an agent is new or returns.
        place = 0 if self._rules.per_generation else self._place
        return (1.0, -priority, share, place, *self._rank(lane.members[agent])), agent

    @property
    def _order(self) -> ResumeOrder:
        return "oldest" if self._place or self._rules.per_generation else self._rules.resume_order

    def _first(self, lane: _Lane) -> str:
        members, order = lane.members, self._order
        if not self._deadlines and order == "oldest":
            return next(iter(members))
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


def _append(members: OrderedDict[str, Member], agents: Mapping[str, Member]) -> bool:
    """Put agents at the end; whether they are out of order there."""
    latest = next(reversed(members.values())).ticket if members else 0
    members.update(agents)
    return any(member.ticket < latest for member in agents.values())


def _sort(members: OrderedDict[str, Member]) -> None:
    """Bring members into the order of their tickets."""
    for agent in sorted(members, key=lambda agent: members[agent].ticket):
        members.move_to_end(agent)
