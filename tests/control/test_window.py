"""The window: life cycle, order and invariants."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from concur_batch.control.law import Law
from concur_batch.control.window import Membership, Permit, State, Window


def granted(permits: list[Permit]) -> list[str]:
    return [permit.agent for permit in permits if permit.allowed]


def marked(permits: list[Permit]) -> list[str]:
    return [permit.agent for permit in permits if not permit.allowed]


def filled(capacity: int, agents: str) -> tuple[Window, dict[str, int]]:
    """A window with these agents arrived, and the epoch that each host knows."""
    window, epochs = Window(capacity), {}
    for agent in agents:
        for permit in window.arrive(agent):
            epochs[permit.agent] = permit.epoch
    return window, epochs


def test_admits_in_order_of_arrival_up_to_the_window() -> None:
    window = Window(2)
    assert [granted(window.arrive(agent)) for agent in "abc"] == [["a"], ["b"], []]
    assert [window.state(agent) for agent in "abc"] == [State.ACTIVE, State.ACTIVE, State.PENDING]


def test_a_tool_wait_keeps_its_place() -> None:
    window, _ = filled(2, "abc")
    window.observe("a", State.TOOL_WAIT)
    window.observe("b", State.TOOL_WAIT)
    assert window.places_held == 2
    assert window.resize(2) == []  # nobody is let in for them
    assert window.state("c") is State.PENDING


def test_a_later_turn_is_never_a_new_agent() -> None:
    window, _ = filled(1, "ab")
    for _ in range(3):
        window.observe("a", State.TOOL_WAIT)
        window.observe("a", State.ACTIVE)
        assert window.arrive("a") == []
    assert window.take_moves().admitted == 1
    assert window.places_held == 1


def test_the_worked_example() -> None:
    """W=4, four active, U=0.65, H=0.15: two are marked and none killed; then hold; then grow, the paused first."""
    window, epochs = filled(4, "abcdef")
    law = Law()
    capacity, _ = law.step(4, usage=0.65, hit_rate=0.15)
    assert capacity == 2
    marks = window.resize(capacity)
    assert marked(marks) == ["d", "c"]  # the newest admitted first
    epochs |= {permit.agent: permit.epoch for permit in marks}
    assert window.places_held == 4  # their running generations end normally
    for agent in "cd":
        assert window.reached_boundary(agent, epochs[agent]) == []
    assert [window.state(agent) for agent in "abcd"] == [State.ACTIVE, State.ACTIVE, State.PAUSED, State.PAUSED]
    capacity, _ = law.step(capacity, usage=0.45, hit_rate=0.82)
    assert capacity == 2
    assert window.resize(capacity) == []
    assert granted(window.release("a")) == ["c"]  # a place is free: the paused come before the pending
    capacity, _ = law.step(capacity, usage=0.18, hit_rate=0.82)
    assert capacity == 4
    assert granted(window.resize(capacity)) == ["d", "e"]
    assert window.counts()[State.PAUSED] == 0


def test_growth_lifts_marks_before_anyone_is_resumed_oldest_admission_first() -> None:
    window, _ = filled(4, "abcde")
    assert marked(window.resize(1)) == ["d", "c", "b"]
    assert granted(window.resize(3)) == ["b", "c"]
    assert window.marked == 1


def test_a_report_that_a_newer_permit_overtook_is_void() -> None:
    window, _ = filled(2, "ab")
    (mark,) = window.resize(1)
    (lift,) = window.resize(2)
    assert (mark.agent, lift.agent, lift.epoch) == ("b", "b", mark.epoch + 1)
    assert window.reached_boundary("b", mark.epoch) == []
    assert window.state("b") is State.ACTIVE
    assert window.places_held == 2


@pytest.mark.parametrize("state", ["pending", "active", "tool_wait", "marked", "paused"])
def test_every_exit_gives_the_place_back(state: str) -> None:
    window, _ = filled(2, "abcd")
    agent = {"pending": "c"}.get(state, "b")
    if state == "tool_wait":
        window.observe("b", State.TOOL_WAIT)
    if state in ("marked", "paused"):
        (mark,) = window.resize(1)
        if state == "paused":
            window.reached_boundary("b", mark.epoch)
    window.release(agent)
    assert window.state(agent) is State.FINISHED
    window.resize(2)
    assert window.places_held == 2
    for rest in "abcd":
        window.release(rest)
    counts = window.counts()
    assert window.places_held == window.waiting == window.marked == 0
    assert counts == {state: 4 if state is State.FINISHED else 0 for state in State}


def test_a_request_cap_frees_the_place_with_each_generation() -> None:
    window = Window(1, per_generation=True)
    assert granted(window.arrive("a")) == ["a"]
    assert window.arrive("b") == []
    assert granted(window.yield_place("a")) == ["b"]
    assert window.arrive("a") == []
    assert window.state("a") is State.QUEUED
    assert granted(window.yield_place("b")) == ["a"]
    assert window.take_moves().admitted == 2  # a's second turn is no new agent


def test_an_unbounded_window_lets_everyone_in() -> None:
    window = Window(None)
    assert all(granted(window.arrive(str(agent))) == [str(agent)] for agent in range(1000))


def test_a_restored_window_grants_nothing_beyond_its_places_and_honours_old_marks() -> None:
    window = Window(None, granting=False)
    members = [
        Membership("a", State.ACTIVE, 1, True, True),
        Membership("b", State.TOOL_WAIT, 2, True, True),  # marked by the controller before: its last permit said no
        Membership("c", State.PAUSED, 2, True, False),
        Membership("d", State.PENDING, 0, False, False),
    ]
    assert window.restore(members) == []  # others may hold places that we have not heard of
    assert window.arrive("e") == []
    assert window.resize(2) == []
    assert granted(window.release("a")) == ["c"]
    assert granted(window.release("b", "c")) == ["d", "e"]


def test_a_pause_that_an_earlier_controller_asked_for_takes_effect() -> None:
    window = Window(2)
    window.restore([Membership("a", State.TOOL_WAIT, 2, True, True)])
    assert granted(window.reached_boundary("a", 2)) == ["a"]  # paused, and there is room: it goes on at once


class Batch(RuleBasedStateMachine):
    """Hosts and window over a lossless but reordering channel: permits may arrive late and out of order."""

    @initialize(capacity=st.integers(0, 5), per_generation=st.booleans())
    def open(self, capacity: int, per_generation: bool) -> None:
        self.window = Window(capacity, per_generation=per_generation)
        self.on_the_way: list[Permit] = []
        self.epoch: dict[str, int] = {}
        self.allowed: dict[str, bool] = {}
        self.doing: dict[str, str] = {}  # generating | tool | waiting
        self.born = 0

    def send(self, permits: list[Permit]) -> None:
        self.on_the_way += permits

    @rule(count=st.integers(1, 3))
    def arrivals(self, count: int) -> None:
        for _ in range(count):
            agent = f"a{self.born}"
            self.born += 1
            self.epoch[agent], self.allowed[agent], self.doing[agent] = 0, False, "waiting"
            self.send(self.window.arrive(agent))

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        permit = self.on_the_way.pop(data.draw(st.integers(0, len(self.on_the_way) - 1)))
        agent = permit.agent
        if agent in self.doing and permit.epoch > self.epoch[agent]:
            self.epoch[agent], self.allowed[agent] = permit.epoch, permit.allowed
            if permit.allowed and self.doing[agent] == "waiting":
                self.doing[agent] = "generating"

    def some(self, data: st.DataObject, what: str) -> str | None:
        agents = [agent for agent, doing in self.doing.items() if doing == what]
        return data.draw(st.sampled_from(agents)) if agents else None

    @rule(data=st.data())
    def generation_ends(self, data: st.DataObject) -> None:
        agent = self.some(data, "generating")
        if agent is None:
            return
        self.doing[agent] = "tool"
        if self.window.per_generation:
            self.allowed[agent] = False
            self.send(self.window.yield_place(agent))
        else:
            self.window.observe(agent, State.TOOL_WAIT)

    @rule(data=st.data())
    def tool_ends(self, data: st.DataObject) -> None:
        agent = self.some(data, "tool")
        if agent is None:
            return
        if self.allowed[agent]:
            self.doing[agent] = "generating"
            self.window.observe(agent, State.ACTIVE)
            return
        self.doing[agent] = "waiting"
        if self.window.per_generation:
            self.send(self.window.arrive(agent))
        else:
            self.send(self.window.reached_boundary(agent, self.epoch[agent]))

    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        if self.doing:
            agent = data.draw(st.sampled_from(sorted(self.doing)))
            del self.doing[agent]
            self.send(self.window.release(agent))

    @rule(capacity=st.integers(0, 6))
    def tick(self, capacity: int) -> None:
        self.send(self.window.resize(capacity))

    @invariant()
    def no_agent_is_lost_or_doubled(self) -> None:
        counts = self.window.counts()
        assert sum(counts.values()) == self.born
        assert counts[State.FINISHED] == self.born - len(self.doing)

    @invariant()
    def unmarked_places_fit_the_window(self) -> None:
        if not self.window.per_generation:
            assert self.window.places_held - self.window.marked <= self.window.capacity

    @invariant()
    def nobody_waits_beside_a_free_place(self) -> None:
        if self.window.places_held < self.window.capacity:
            assert self.window.waiting == 0

    @invariant()
    def whoever_is_paused_does_not_generate(self) -> None:
        for agent, doing in self.doing.items():
            if self.window.state(agent) is State.PAUSED:
                assert doing == "waiting"

    def teardown(self) -> None:
        """Everyone finishes once everything in flight is delivered and each agent ends in turn."""
        if not hasattr(self, "window"):
            return
        self.send(self.window.resize(1))
        for _ in range(20 * self.born + 20):
            while self.on_the_way:
                permit = self.on_the_way.pop(0)
                agent = permit.agent
                if agent in self.doing and permit.epoch > self.epoch[agent]:
                    self.epoch[agent], self.allowed[agent] = permit.epoch, permit.allowed
                    if permit.allowed and self.doing[agent] == "waiting":
                        self.doing[agent] = "generating"
            running = [agent for agent, doing in self.doing.items() if doing != "waiting"]
            if not running:
                break
            del self.doing[running[0]]
            self.send(self.window.release(running[0]))
        assert not self.doing
        assert self.window.places_held == 0


TestBatch = Batch.TestCase
TestBatch.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
