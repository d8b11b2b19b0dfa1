"""Who may generate: all agents of a batch over the windows of all KV pools.

Pure: events come in as method calls with the time, decisions go out as permits. One object of this class drives the Ray
controller and the simulated batch.

Pauses. When a window shrinks below the number of places held, holders are *marked*; each reports back when it reaches
its next boundary between a tool's end and a generation, and only then loses its place. Marks are lifted, oldest
admission first, if the window grows again before that.

Pools. An agent belongs to the pool that holds its prefix. A new one goes to the pool with the most free places; a
paused one resumes where it was, unless its prefix is believed gone: it is then *displaced* and may resume in any pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from concur_batch.control.member import Beat, Event, Member, Membership, Permit, State
from concur_batch.control.queue import Queue, Rank
from concur_batch.control.room import Room
from concur_batch.control.rules import Rules
from concur_batch.control.waits import Waits
from concur_batch.control.window import Window

# Weight of the newest turn in the mean growth of a history per turn: about the last hundred turns of the batch count.
_GROWTH_WEIGHT = 0.02


class Admission:
    """Closed (`granting` false) it takes events and decides nothing, so that a restarted controller can first learn who
    holds what. `suspended`: every window counts as empty of places, until it is set back."""

    def __init__(self, rules: Rules, pools: Iterable[str], *, granting: bool = False) -> None:
        self.rules = rules
        self.granting = granting
        self.suspended = False
        self.growth_tokens_per_turn = 0.0
        self._members: dict[str, Member] = {}
        self._tally: Counter[tuple[str | None, State]] = Counter()  # members by pool and state
        self._held: Counter[str] = Counter()  # places held, by group
        self._pending = Queue(rules, 1, self._held)
        self._displaced = Queue(rules, 0, self._held)
        self.windows = {name: Window(name, rules, Queue(rules, 0, self._held)) for name in pools}
        self._shared_tokens: int | None = None
        self._tickets = 0
        self.waits = Waits()
        self._now_seconds = 0.0

    def set_rules(self, rules: Rules) -> None:
        """Choose by other rules from now on; whether a place lasts for one generation cannot change."""
        self.rules = self._pending.rules = self._displaced.rules = rules
        for window in self.windows.values():
            window.rules = window.paused.rules = rules

    def take(self, event: Event, now_seconds: float) -> list[Permit]:
        """One event of a host."""
        self._now_seconds = now_seconds
        agent, member = event.agent, self._members.get(event.agent)
        self._learn_shared(event.shared_tokens)
        match event.kind:
            case "arrive":
                self._arrive(event, member)
            case "boundary" | "large" | "down" if member is not None:
                self._reach_boundary(event, member)
            case "yield" if member is not None and self.rules.per_generation:
                # One of an earlier place, told before the host's census, does not cost the agent its new one.
                if event.epoch >= member.granted and self._vacate(agent, member) is not None:
                    self._enter_state(member, State.TOOL_WAIT)
            case "release" if member is not None:
                self._forget(agent, member)
            case _:  # of an agent that has ended: a host's report that was overtaken
                return []
        return self._settle()

    def beat(self, beats: Iterable[Beat], now_seconds: float) -> None:
        """Record what agents with a place do. Changes no place."""
        for agent, state, context_tokens, waited_seconds in beats:
            if state not in (State.ACTIVE, State.TOOL_WAIT):
                raise ValueError(f"an agent cannot be observed as {state}")
            if waited_seconds is not None:
                self.waits.add(waited_seconds)
            member = self._members.get(agent)
            window = None if member is None or member.pool is None else self.windows[member.pool]
            if member is None or window is None or (agent not in window.holders and agent not in window.adrift):
                continue
            # A longer history is another turn, even in the same state: all between went by unseen.
            if state is not member.state or context_tokens != member.context_tokens:
                self._move(member, state, member.pool)
                member.since_seconds = now_seconds
            if state is State.TOOL_WAIT or context_tokens > member.context_tokens:  # it has generated
                member.forced = False
            if agent in window.holders:
                window.grow_history(agent, context_tokens)
            member.context_tokens = context_tokens
            if state is State.TOOL_WAIT:  # its prefix is in the pool
                member.evicted_before = window.evicted_tokens
            self._learn_growth(member)

    def release(self, agents: Iterable[str], now_seconds: float) -> list[Permit]:
        """These agents are gone, all at once: a host was lost. Unknown ones are ignored."""
        self._now_seconds = now_seconds
        for agent in agents:
            if (member := self._members.get(agent)) is not None:
                self._forget(agent, member)
        return self._settle()

    def resize(
        self, capacities: Mapping[str, int | None], now_seconds: float, rooms: Mapping[str, Room | None] | None = None
    ) -> list[Permit]:
        """Set the number of places of these pools, and their room in tokens where it is bounded, and begin to grant;
        marks, unmarks, lets in as it must."""
        self._now_seconds = now_seconds
        for name, capacity in capacities.items():
            window = self.windows[name]
            window.capacity = capacity
            window.set_room((rooms or {}).get(name))
        self.granting = True
        permits = self._end_long_tool_waits()
        self._displace()
        permits += self._settle()
        # Only whom no free place was found for is let in beyond the window; others then pay for it.
        return permits + self._end_long_pauses() + self._settle()

    def suspect(self, pool: str, now_seconds: float) -> None:
        """The pool may not answer: let nobody in until it is known to."""
        window = self.windows[pool]
        window.closed, window.closed_at_seconds = True, now_seconds

    def close(self, pool: str, now_seconds: float) -> list[Permit]:
        """The pool does not answer: its agents give up their places there and may go on elsewhere."""
        self._now_seconds = now_seconds
        window = self.windows[pool]
        window.closed, window.closed_at_seconds = True, now_seconds
        permits = [self._set_adrift(window, agent) for agent in list(window.holders)]
        self._displace()
        return permits + self._settle()

    def reopen(self, pool: str, now_seconds: float) -> list[Permit]:
        """The pool answers again."""
        self._now_seconds = now_seconds
        self.windows[pool].closed = False
        self._restart_pauses()
        return self._settle()

    def suspend(self, suspended: bool, now_seconds: float) -> list[Permit]:
        """Pause everybody at their next boundary, or let them go on."""
        self._now_seconds = now_seconds
        self.suspended = suspended
        if not suspended:
            self._restart_pauses()
        return self._settle()

    def restore(self, members: Iterable[Membership], now_seconds: float) -> list[Permit]:
        """Take over agents from a host's account, in its order. Agents already known are left as they are."""
        self._now_seconds = now_seconds
        for entry in members:
            if entry.agent in self._members or entry.state is State.FINISHED:
                continue
            pool = entry.pool if entry.pool in self.windows else None
            member = Member(
                entry.traits,
                entry.state,
                epoch=entry.epoch,
                granted=entry.epoch,
                admitted=entry.admitted,
                pool=pool,
                context_tokens=entry.context_tokens,
            )
            member.since_seconds = now_seconds
            self._learn_shared(entry.shared_tokens)
            self._members[entry.agent] = member
            self._tally[pool, entry.state] += 1
            if entry.holds_place and pool is not None:
                self._seat(entry.agent, member, self.windows[pool])
            elif entry.state is not State.TOOL_WAIT:
                self._wait(entry.agent, member, entry.state)
        return self._settle()

    @property
    def places_held(self) -> int:
        """Agents that hold a place, the marked ones included."""
        return sum(len(window.holders) for window in self.windows.values())

    @property
    def waiting(self) -> int:
        """Agents that want to generate and may not: pending, paused or queued."""
        return self.waiting_elsewhere + sum(len(window.paused) for window in self.windows.values())

    @property
    def waiting_elsewhere(self) -> int:
        """Agents that wait for a place in whichever pool."""
        return len(self._pending) + len(self._displaced)

    def counts(self) -> dict[State, int]:
        """Agents by state."""
        counter = {state: sum(self.count(pool, state) for pool in (None, *self.windows)) for state in State}
        counter[State.FINISHED] = sum(window.finished for window in self.windows.values())
        return counter

    def count(self, pool: str | None, state: State) -> int:
        """Agents of a pool, None for those that no pool holds anything of, in a state."""
        return self._tally[pool, state]

    def member(self, agent: str) -> Member | None:
        """The account of an agent, None for one that ended or was never here."""
        return self._members.get(agent)

    def members(self) -> Iterable[tuple[str, Member]]:
        """All agents that have not ended, in order of arrival."""
        return self._members.items()

    def _learn_growth(self, member: Member) -> None:
        """From one turn's prompt to the next one's, and from end to end: quick tools, and quick generations, are seldom
        seen. A turn that went by unseen counts with the one after it."""
        before_tokens = member.seen_tokens.get(member.state, 0)
        grown = member.context_tokens - before_tokens
        if before_tokens and grown > 0:
            weight = _GROWTH_WEIGHT if self.growth_tokens_per_turn else 1.0
            self.growth_tokens_per_turn += weight * (grown - self.growth_tokens_per_turn)
            for window in self.windows.values():
                window.growth_tokens = int(self.growth_tokens_per_turn)
        member.seen_tokens[member.state] = member.context_tokens

    def _learn_shared(self, shared_tokens: int | None) -> None:
        """What all agents have in common is the least that any host has seen."""
        if shared_tokens is None or (self._shared_tokens is not None and self._shared_tokens <= shared_tokens):
            return
        self._shared_tokens = shared_tokens
        for window in self.windows.values():
            window.shared_tokens = shared_tokens

    def _arrive(self, event: Event, member: Member | None) -> None:
        if member is None:
            member = self._members[event.agent] = Member(event.traits)
            self._tally[member.pool, member.state] += 1
        elif (
            member.state is not State.TOOL_WAIT
            or event.epoch < member.granted
            or self._place_of(event.agent, member) is not None
        ):
            return  # it waits or holds a place already, or has generated since
        member.context_tokens = event.context_tokens
        self._wait(event.agent, member, State.QUEUED if member.admitted else State.PENDING)

    def _reach_boundary(self, event: Event, member: Member) -> None:
        # An equal epoch means that the host's last word was this permit, even if a controller before this one gave it;
        # a report that a newer permit has overtaken is void, since that permit lets the agent go on.
        if member.epoch != event.epoch or self._place_of(event.agent, member) is None:
            return
        window = self.windows[member.pool or ""]
        if event.kind == "down":
            self.suspect(window.name, self._now_seconds)
        member.pauses_in_a_row += event.agent in window.marked and not self.suspended
        self._vacate(event.agent, member)
        member.context_tokens = event.context_tokens
        window.moves.paused += 1
        self._wait(event.agent, member, State.PAUSED)

    def _wait(self, agent: str, member: Member, state: State) -> None:
        """Into the queue that the agent belongs to."""
        if member.pool is not None and self._may_move(member, self.windows[member.pool]):
            self._move(member, member.state, None)
        self._tickets += 1
        member.ticket = self._tickets
        self._enter_state(member, state)
        self._queue_of(member).add({agent: member})

    def _queue_of(self, member: Member) -> Queue:
        if not member.admitted:
            return self._pending
        if member.pool is None:
            return self._displaced
        return self.windows[member.pool].paused

    def _seat(self, agent: str, member: Member, window: Window) -> None:
        window.enter(agent, member)
        self._held[member.traits.group] += 1

    def _unseat(self, member: Member) -> None:
        self._held[member.traits.group] -= 1
        for queue in (self._pending, self._displaced, *(window.paused for window in self.windows.values())):
            queue.touch(member.traits.group)

    def _vacate(self, agent: str, member: Member) -> Member | None:
        """Take the agent's place back; None if it has none and is not adrift."""
        window = self._place_of(agent, member)
        if window is None:
            return None
        if agent in window.holders:
            self._unseat(member)
        return window.leave(agent)

    def _set_adrift(self, window: Window, agent: str) -> Permit:
        self._unseat(window.holders[agent])
        window.set_adrift(agent)
        return self._permit(agent, window, allowed=False)

    def _place_of(self, agent: str, member: Member) -> Window | None:
        """The window in which the agent holds a place or is adrift."""
        window = None if member.pool is None else self.windows[member.pool]
        return window if window is not None and (agent in window.holders or agent in window.adrift) else None

    def _forget(self, agent: str, member: Member) -> None:
        self._vacate(agent, member)
        self._queue_of(member).remove(agent, member)
        del self._members[agent]
        self._tally[member.pool, member.state] -= 1
        # One that no pool holds anything of has to be on record somewhere.
        window = self.windows[member.pool or next(iter(self.windows))]
        window.finished += 1
        window.moves.completed += 1

    def _end_long_tool_waits(self) -> list[Permit]:
        """Lend the places of agents that are too long in a tool."""
        permits: list[Permit] = []
        for window in self.windows.values():
            if (most := window.longest_tool_wait_seconds) is not None:
                permits += [
                    self._set_adrift(window, agent)
                    for agent, member in list(window.holders.items())
                    if member.state is State.TOOL_WAIT and self._now_seconds - member.since_seconds >= most
                ]
        return permits

    def _restart_pauses(self) -> None:
        """No rule bounds the time for which nobody could go on: it counts as no pause."""
        for member in self._members.values():
            if member.state is State.PAUSED:
                member.since_seconds = self._now_seconds

    def _end_long_pauses(self) -> list[Permit]:
        """Let those go on that have been paused too long, without a free place, as long as another can be paused for
        each."""
        permits: list[Permit] = []
        if (most := self.rules.longest_pause_seconds) is not None and not self.suspended:
            waiting = [(agent, member) for agent, member in self._members.items() if member.state is State.PAUSED]
            for agent, member in waiting:
                if self._now_seconds - member.since_seconds < most:
                    continue
                home = None if member.pool is None else self.windows[member.pool]
                window = home if home is not None and not home.closed else self._roomiest(member, full=True)
                if window is not None and window.can_pay():
                    member.forced = True
                    window.moves.forced += 1
                    permits.append(self._admit(agent, member, window))
        return permits

    def _displace(self) -> None:
        """Let paused agents whose prefix is gone resume anywhere."""
        moving = {}
        for window in self.windows.values() if len(self.windows) > 1 else ():
            for agent in [agent for agent in window.paused if self._may_move(self._members[agent], window)]:
                moving[agent] = member = self._members[agent]
                window.paused.remove(agent, member)
                self._move(member, member.state, None)
        self._displaced.add(moving)

    def _may_move(self, member: Member, window: Window) -> bool:
        return len(self.windows) > 1 and (window.prefix_gone(member) or not window.holds(member))

    def _settle(self) -> list[Permit]:
        """Bring marks and places in line with the capacities."""
        if not self.granting:
            return []
        permits: list[Permit] = []
        for window in self.windows.values():
            permits += self._mark(window)
        blocked: set[str] = set()
        while (found := self._next(blocked)) is not None:
            agent, window = found
            member = self._members[agent]
            if window.fits(member, idle=not self.count(window.name, State.ACTIVE)):
                permits.append(self._admit(agent, member, window))
            else:  # nobody overtakes it: the holders' ends make room for it
                blocked.add(window.name)
        return permits

    def _mark(self, window: Window) -> list[Permit]:
        surplus = window.surplus(self.suspended)
        if surplus > 0:
            if self.rules.per_generation:  # a request under way is never called back: its place ends by itself
                return []
            victims = window.victims(surplus)
            window.marked |= dict.fromkeys(victims)
            return [self._permit(agent, window, allowed=False) for agent in victims]
        lifted = window.reprieved(-surplus)
        for agent in lifted:
            del window.marked[agent]
        return [self._permit(agent, window, allowed=True) for agent in lifted]

    def _next(self, blocked: set[str]) -> tuple[str, Window] | None:
        """The agent that is next, and the pool it goes to; None when nobody waits or nothing is free."""
        if self.suspended:
            return None
        candidates: list[tuple[Rank, str, Window]] = []
        for window in self.windows.values():
            if window.open and window.name not in blocked and (found := window.paused.next(self._now_seconds)):
                candidates.append((*found, window))
        if any(window.open and window.name not in blocked for window in self.windows.values()):
            for queue in (self._displaced, self._pending):
                before_paused = queue is self._pending and self._is_last_wave()
                if (found := queue.next(self._now_seconds, before_paused=before_paused)) is not None:
                    roomiest = self._roomiest(self._members[found[1]], blocked=blocked)
                    if roomiest is not None:
                        candidates.append((*found, roomiest))
        best = min(candidates, key=lambda candidate: candidate[0], default=None)
        return None if best is None else (best[1], best[2])

    def _is_last_wave(self) -> bool:
        """Whether no more agents are left to begin than hold a place, and are to begin before others go on."""
        if not self.rules.last_wave_first:
            return False
        return len(self._pending) <= sum(len(window.holders) for window in self.windows.values())

    def _roomiest(self, member: Member, *, full: bool = False, blocked: Iterable[str] = ()) -> Window | None:
        """The open pool with the most free places, or the fewest holders where nothing bounds them.

        With `full`, a pool without a free place counts too, as long as it answers. A pool that is smaller than the
        agent's history is out of the question, unless all are: its host knows what to do then.
        """
        windows = [
            window
            for window in self.windows.values()
            if window.name not in blocked and (window.open or (full and not window.closed))
        ]
        if any(window.holds(member) for window in self.windows.values()):
            windows = [window for window in windows if window.holds(member)]
        return max(windows, key=lambda window: window.spare, default=None)

    def _admit(self, agent: str, member: Member, window: Window) -> Permit:
        self._queue_of(member).remove(agent, member)
        if member.state is State.PAUSED:
            window.moves.resumed += 1
        elif not member.admitted:
            window.moves.admitted += 1
        member.admitted = True
        member.evicted_before = window.evicted_tokens
        self._move(member, member.state, window.name)
        self._enter_state(member, State.ACTIVE)
        self._seat(agent, member, window)
        return self._permit(agent, window, allowed=True)

    def _enter_state(self, member: Member, state: State) -> None:
        self._move(member, state, member.pool)
        member.since_seconds = self._now_seconds

    def _move(self, member: Member, state: State, pool: str | None) -> None:
        self._tally[member.pool, member.state] -= 1
        member.state, member.pool = state, pool
        self._tally[pool, state] += 1

    def _permit(self, agent: str, window: Window, *, allowed: bool) -> Permit:
        member = self._members[agent]
        member.epoch += 1
        if allowed:
            member.granted = member.epoch
        return Permit(agent, member.epoch, allowed, window.name)
