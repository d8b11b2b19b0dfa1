"""The radix cache, by worked example and against a naive model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from concur_batch.simulator.node import Node, pack
from concur_batch.simulator.radix import RadixCache


def ids(text: str) -> bytes:
    """One token a letter."""
    return pack(np.frombuffer(text.encode(), dtype=np.uint8))


def path(node: Node) -> str:
    """The letters from the root to the end of `node`."""
    above = path(node.parent) if node.parent is not None else ""
    return above + "".join(chr(token) for token in np.frombuffer(node.tokens, dtype=np.int32))


def cached(cache: RadixCache) -> set[str]:
    """The resident sequences, root to leaf."""
    return {path(node) for node in cache.nodes() if not node.children}


def test_match_finds_the_longest_prefix_and_splits_where_sequences_part() -> None:
    cache = RadixCache()
    cache.insert(ids("abcdef"))
    node, length = cache.match(ids("abcxyz"))
    assert (length, node.size) == (3, 3)
    cache.insert(ids("abcxyz"))
    assert cached(cache) == {"abcdef", "abcxyz"}
    assert cache.evictable_tokens == 9
    assert cache.match(ids("zzz"))[1] == 0
    assert cache.match(b"")[1] == 0
    cache.check_integrity()


def test_eviction_takes_whole_leaves_least_recently_used_first() -> None:
    cache = RadixCache()
    for text in ("abcd", "efgh", "ijkl"):
        cache.insert(ids(text))
    cache.match(ids("abcd"))
    assert cache.evict(1) == 4, "whole leaves: more than was asked for"
    assert cached(cache) == {"abcd", "ijkl"}
    assert cache.evict(5) == 8
    assert (cache.evicted_tokens_total, cache.evictable_tokens) == (12, 0)
    assert cache.evict(1) == 0


def test_a_parent_becomes_a_leaf_once_its_children_are_gone() -> None:
    cache = RadixCache()
    cache.insert(ids("abcd"))
    cache.insert(ids("abxy"))
    cache.insert(ids("q"))
    assert cache.evict(2) == 2
    assert cached(cache) == {"abxy", "q"}
    assert cache.evict(4) == 4
    assert cached(cache) == {"q"}, "`ab` was touched with its last child, before `q`"


def test_a_lock_holds_the_whole_path_and_survives_a_split() -> None:
    cache = RadixCache()
    node = cache.insert(ids("abcd"))
    cache.lock(node)
    assert (cache.locked_tokens, cache.evictable_tokens) == (4, 0)
    cache.insert(ids("abx"))
    assert (cache.locked_tokens, cache.evictable_tokens) == (4, 1)
    assert cache.evict(10) == 1
    assert cached(cache) == {"abcd"}
    cache.unlock(node)
    assert cache.evict(10) == 4


def test_insert_can_go_on_from_a_locked_node() -> None:
    cache = RadixCache()
    node = cache.insert(ids("abc"))
    cache.lock(node)
    end = cache.insert(ids("abcdef"), under=node, prefix_tokens=3)
    assert (end.parent, end.size) == (node, 3)


def test_only_whole_pages_are_cached_and_matched() -> None:
    cache = RadixCache(page_size=4)
    cache.insert(ids("abcdefghij"))
    assert cache.evictable_tokens == 8
    assert cache.match(ids("abcdefghij"))[1] == 8
    assert cache.match(ids("abcdefgx"))[1] == 4
    assert cache.match(ids("abcx"))[1] == 0
    cache.insert(ids("abcdxxxx"))
    assert cached(cache) == {"abcdefgh", "abcdxxxx"}


def test_long_histories_are_compared_without_a_loop_over_tokens() -> None:
    cache = RadixCache()
    history = np.arange(2_000_000, dtype=np.int32)
    cache.insert(pack(history))
    other = history.copy()
    other[1_999_999] = 0
    assert cache.match(pack(other))[1] == 1_999_999


@pytest.mark.parametrize("page_size", [1, 3])
def test_the_naive_model_agrees(page_size: int) -> None:
    class Machine(RuleBasedStateMachine):
        """A set of resident page paths, with the time of the last access to each and the number of its locks."""

        def __init__(self) -> None:
            super().__init__()
            self.cache = RadixCache(page_size)
            self.resident: set[str] = set()
            self.held: list[tuple[Node, str]] = []
            self.evicted = 0

        def pages(self, text: str) -> list[str]:
            return [text[:end] for end in range(page_size, len(text) + 1, page_size)]

        texts = st.text("abc", max_size=14)

        @rule(text=texts)
        def insert(self, text: str) -> None:
            self.cache.insert(ids(text))
            self.resident.update(self.pages(text))

        @rule(text=texts)
        def match(self, text: str) -> None:
            _, length = self.cache.match(ids(text))
            known = [page for page in self.pages(text) if page in self.resident]
            assert length == (len(known[-1]) if known else 0)

        @rule(text=texts)
        def lock(self, text: str) -> None:
            node, length = self.cache.match(ids(text))
            self.cache.lock(node)
            self.held.append((node, text[:length]))

        @precondition(lambda self: self.held)
        @rule(data=st.data())
        def unlock(self, data: st.DataObject) -> None:
            index = data.draw(st.integers(0, len(self.held) - 1))
            self.cache.unlock(self.held.pop(index)[0])

        @precondition(lambda self: self.held)
        @rule(data=st.data(), tail=texts)
        def extend(self, data: st.DataObject, tail: str) -> None:
            node, prefix = data.draw(st.sampled_from(self.held))
            self.cache.insert(ids(prefix + tail), under=node, prefix_tokens=len(prefix))
            self.resident.update(self.pages(prefix + tail))

        @rule(tokens=st.integers(0, 20))
        def evict(self, tokens: int) -> None:
            before = self.cache.evictable_tokens
            evicted = self.cache.evict(tokens)
            assert evicted >= min(tokens, before)
            still = {page for page in self.resident if self.has(page)}
            assert (len(self.resident) - len(still)) * page_size == evicted
            for _, prefix in self.held:
                assert set(self.pages(prefix)) <= still, "a locked prefix was evicted"
            self.resident = still
            self.evicted += evicted

        def has(self, path: str) -> bool:
            """Whether the tree holds this path, read without touching it."""
            node, offset = self.cache.root, 0
            tokens = ids(path)
            while offset < len(tokens):
                child = node.children.get(tokens[offset : offset + 4 * page_size])
                if child is None or not child.tokens.startswith(tokens[offset : offset + len(child.tokens)]):
                    return False
                node, offset = child, offset + len(child.tokens)
            return True

        @invariant()
        def accounts(self) -> None:
            self.cache.check_integrity()
            locked = {page for _, prefix in self.held for page in self.pages(prefix)}
            assert self.cache.locked_tokens >= len(locked) * page_size
            assert self.cache.locked_tokens + self.cache.evictable_tokens == len(self.resident) * page_size
            assert self.cache.evicted_tokens_total == self.evicted

    Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    case = Machine.TestCase()
    case.runTest()


@settings(deadline=None)
@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=8), st.booleans()), min_size=1, max_size=20))
def test_leaves_go_in_the_order_of_their_last_use(uses: list[tuple[str, bool]]) -> None:
    """Against a sorted list: of two leaves, the one used earlier is gone first. A split uses the lower part too."""
    cache = RadixCache()
    last_use: dict[str, float] = {}
    for time, (text, insert) in enumerate(uses):
        ends = {path(node) for node in cache.nodes()}
        if insert:
            cache.insert(ids(text))
            length = len(text)
        else:
            length = cache.match(ids(text))[1]
        for cut in {path(node) for node in cache.nodes()} - ends:
            for lower in sorted((end for end in ends if end.startswith(cut)), key=len)[:1]:
                last_use |= {lower[:end]: time - 0.5 for end in range(len(cut) + 1, len(lower) + 1)}
        last_use |= {text[:end]: time for end in range(1, length + 1)}
    while leaves := cached(cache):
        leaves.discard("")
        oldest = min(last_use[leaf] for leaf in leaves)
        cache.evict(1)
        gone = leaves - cached(cache)
        assert gone and all(last_use[leaf] == oldest for leaf in gone)
        if not cache.evictable_tokens:
            break
