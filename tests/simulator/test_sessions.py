"""Session tags: what is evicted first, by worked example on an engine, and the eviction queue against a sorted list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.simulator.config import EngineConfig, HiCacheConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.engine import EngineCore
from concur_batch.simulator.eviction import EvictionQueue
from concur_batch.simulator.node import Node
from concur_batch.simulator.request import Completion, Request

INFINITY = float("inf")


def make_core(pool: int = 100, *, sessions: bool = True, hicache: HiCacheConfig | None = None) -> EngineCore:
    return EngineCore(EngineConfig(pool, context_tokens=1000, sessions=sessions, hicache=hicache), CostModel.zero())


def submit(core: EngineCore, prompt: Sequence[int], session: str | None, output_tokens: int = 1) -> None:
    outputs = np.full(output_tokens, 9, dtype=np.int32)
    request = Request("r", np.array(prompt, dtype=np.int32), outputs, output_tokens, session=session)
    core.submit(request, core.now_seconds)


def ask(core: EngineCore, prompt: Sequence[int], session: str | None = None) -> Completion:
    """Hand in a prompt for one output token and run to its end."""
    submit(core, prompt, session)
    (done,) = core.advance(INFINITY)
    core.check_integrity()
    return done


@pytest.mark.parametrize("sessions", [False, True])
def test_what_belongs_to_no_session_goes_first(sessions: bool) -> None:
    """Though the session's is older: without tags that is what goes."""
    core = make_core(sessions=sessions)
    ask(core, [1] * 40, "a")
    ask(core, [2] * 40)
    ask(core, [3] * 40)
    assert (ask(core, [1] * 40).cached_tokens > 0) == sessions


def test_a_closed_session_goes_before_older_open_ones() -> None:
    core = make_core()
    ask(core, [1] * 40, "a")
    ask(core, [2] * 40, "b")
    core.close_session("b")
    core.close_session("b")
    core.close_session("nobody")
    ask(core, [3] * 40, "c")
    assert ask(core, [1] * 40, "a").cached_tokens == 39
    assert ask(core, [2] * 40).cached_tokens == 0


def test_closing_evicts_nothing_by_itself() -> None:
    core = make_core()
    ask(core, [1] * 40, "a")
    core.close_session("a")
    assert core.counters().evicted == 0
    assert ask(core, [1] * 40).cached_tokens == 39


def test_what_more_sessions_share_goes_later() -> None:
    """Three histories; two sessions end with the first, and one with each of the others, which are younger."""
    core = make_core(130)
    for prompt, session in (([1] * 40, "a"), ([1] * 40, "b"), ([2] * 40, "c"), ([3] * 40, "d")):
        ask(core, prompt, session)
    ask(core, [4] * 30)
    assert ask(core, [1] * 40, "a").cached_tokens == 39
    core.close_session("a")
    core.close_session("b")
    ask(core, [5] * 60)  # takes the place of the 4s and, of nobody now, the 1s
    assert [ask(core, [token] * 40).cached_tokens for token in (3, 1)] == [39, 0]


def test_a_history_that_grows_is_of_one_session_once() -> None:
    """Its mark moves on: it counts no more than another's, and of two that count once the older goes."""
    core = make_core()
    ask(core, [1] * 20, "a")
    ask(core, [1] * 20 + [5] * 20, "a")
    ask(core, [2] * 40, "b")
    ask(core, [3] * 40, "c")
    assert ask(core, [2] * 40, "b").cached_tokens == 39
    assert ask(core, [1] * 20 + [5] * 20, "a").cached_tokens < 39


def test_who_finishes_after_the_closing_belongs_to_nobody() -> None:
    core = make_core()
    submit(core, [1] * 40, "a")
    core.close_session("a")
    core.advance(INFINITY)
    ask(core, [2] * 40, "b")
    ask(core, [3] * 40, "c")
    assert [ask(core, [token] * 40).cached_tokens for token in (2, 1)] == [39, 0]


def test_a_name_may_be_used_again() -> None:
    core = make_core()
    ask(core, [1] * 40, "a")
    core.close_session("a")
    ask(core, [1] * 40, "a")
    ask(core, [2] * 40)
    ask(core, [3] * 40)
    assert ask(core, [1] * 40).cached_tokens == 39


def test_an_aborted_request_marks_nothing() -> None:
    core = EngineCore(EngineConfig(100, context_tokens=1000, sessions=True), CostModel(decode_step_seconds=1.0))
    ask(core, [1] * 40, "a")
    submit(core, [2] * 40, "b", output_tokens=10)
    core.advance(core.now_seconds + 3.0)
    core.abort("r")
    assert core.advance(INFINITY)[0].finish_reason == "abort"
    ask(core, [3] * 40)
    assert [ask(core, [token] * 40).cached_tokens for token in (1, 2)] == [39, 0]


def test_the_host_too_gives_up_first_what_belongs_to_nobody() -> None:
    core = make_core(hicache=HiCacheConfig(190))
    for token, session in ((1, "a"), (2, "b"), (3, "c")):
        ask(core, [token] * 60, session)
    core.close_session("b")
    ask(core, [4] * 60, "d")
    assert ask(core, [1] * 60 + [5], "a").host_cached_tokens == 60
    assert ask(core, [2] * 60 + [5]).host_cached_tokens == 0


def test_a_flush_forgets_the_sessions() -> None:
    core = make_core()
    ask(core, [1] * 40, "a")
    assert core.flush_cache()
    core.close_session("a")
    core.check_integrity()
    assert ask(core, [1] * 40, "a").cached_tokens == 0


KEYS = st.integers(0, 9)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS, KEYS),
        st.tuples(st.just("set"), KEYS, KEYS),
        st.tuples(st.just("lock"), KEYS, KEYS),
        st.tuples(st.just("pop"), KEYS, KEYS),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_the_queue_gives_the_least_that_can_be_evicted_whatever_keys_do(operations: list[tuple[str, int, int]]) -> None:
    nodes = [Node(b"", None, serial) for serial in range(10)]
    queue = EvictionQueue(lambda node: (node.references, node.serial), lambda node: not node.locks)
    waiting: set[int] = set()
    for name, serial, value in operations:
        node = nodes[serial]
        if name == "add" and not node.locks:
            queue.add(node)
            waiting.add(serial)
        elif name == "set":
            node.references, before = value, node.references
            if value < before:
                queue.fell(node)
                waiting -= {serial} if node.locks else set()  # such a one is added anew once it is unlocked
        elif name == "lock":
            node.locks = 1 - node.locks
            if not node.locks:
                queue.add(node)
                waiting.add(serial)
        elif name == "pop":
            able = [(nodes[each].references, each) for each in waiting if not nodes[each].locks]
            found = queue.pop()
            assert (None if found is None else found.serial) == (min(able)[1] if able else None)
            if found is not None:
                waiting.remove(found.serial)
        queue.check_integrity()
