"""Our radix tree against SGLang's own, of the version that `make sglang-cpu` installs: the same random operations.

Both of SGLang's cores are asked, the one in Rust, which its server runs by default, and the one in Python. They agree
with ours on hit lengths by tier, evictable and locked sizes, the host's use, and on what is evicted from device and
host in which order, under each eviction and write policy; and with session tags, which only the one in Python knows,
on what sessions refer to. A copy to the host counts as arrived when the sequence says so, one to the device at once.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concur_batch.simulator.config import HiCacheConfig
from concur_batch.simulator.node import Node, pack
from concur_batch.simulator.radix import RadixCache
from concur_batch.simulator.sessions import Session
from concur_batch.simulator.tiers import TieredCache

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-sglang/bin/python"
CASES = 6  # of each kind
OPERATIONS = 60
MIN_LOAD_TOKENS = 3
EVICTIONS = ("lru", "lfu", "slru", "priority")
WRITE_POLICIES = (None, "write_through", "write_through_selective", "write_back")

Case = dict[str, Any]


def tokens_to(node: Node) -> list[int]:
    """From the root to the end of `node`."""
    above = tokens_to(node.parent) if node.parent is not None else []
    return [*above, *np.frombuffer(node.tokens, dtype=np.int32).tolist()]


class Recorder(RadixCache):
    """Notes what is evicted from the device."""

    evicted: list[list[int]]

    def _free(self, node: Node) -> None:
        self.evicted.append(tokens_to(node))
        super()._free(node)


class TieredRecorder(Recorder, TieredCache):
    """And from the host."""

    host_evicted: list[list[int]]

    def _leave_host(self, node: Node) -> int:
        self.host_evicted.append(tokens_to(node))
        return super()._leave_host(node)


class Ours:
    """Does what `sglang_tree.Tree` does, on our tree."""

    def __init__(self, case: Case) -> None:
        self.pool_tokens = case["pool_tokens"]
        self.page_size = case["page_size"]
        self.tiers: TieredRecorder | None = None
        if case["write_policy"] is not None:
            hicache = HiCacheConfig(case["host_tokens"], case["write_policy"])
            self.tiers = TieredRecorder(self.page_size, case["eviction"], hicache, tagged=case["sessions"])
        self.tree: Recorder = self.tiers or Recorder(self.page_size, case["eviction"], tagged=case["sessions"])
        self.locks: list[Node] = []
        self.requests: list[Session] = []

    def apply(self, name: str, *arguments: Any) -> dict[str, Any]:
        self.tree.evicted = []
        if self.tiers is not None:
            self.tiers.host_evicted = []
        returned = getattr(self, name)(*arguments)
        self.tree.check_integrity()
        return {
            "returned": returned,
            "evictable": self.tree.evictable_tokens,
            "locked": self.tree.locked_tokens,
            "host_used": self.tiers.host_used_tokens if self.tiers else 0,
            "evicted": self.tree.evicted,
            "host_evicted": self.tiers.host_evicted if self.tiers else [],
            "references": sum(node.references * node.size for node in self.tree.nodes()),
        }

    def match(self, ids: list[int]) -> list[int]:
        node, length = self._match(ids)
        _, host_tokens = self.tree.resident(node)
        return [length - host_tokens, host_tokens]

    def insert(self, ids: list[int], counted: int, prompt: int) -> None:
        self._insert(ids, counted, prompt)

    def arrive(self, session: str) -> None:
        self.requests.append(self.tree.sessions.open(session))

    def finish(self, ids: list[int], counted: int, prompt: int, index: int) -> None:
        self.tree.sessions.finished(self.requests.pop(index), self._insert(ids, counted, prompt))

    def close(self, session: str) -> None:
        self.tree.sessions.close(session)

    def _insert(self, ids: list[int], counted: int, prompt: int) -> Node:
        node = self.tree.insert(self._packed(ids), counted_tokens=counted)
        whole = len(ids) - len(ids) % self.page_size
        prompt -= prompt % self.page_size
        if 0 < prompt < whole:
            self.tree.prefer(node, whole, prompt)
        return node

    def lock(self, ids: list[int]) -> int:
        node, length = self._match(ids)
        node, host_tokens = self.tree.resident(node)
        self._lock(node)
        return length - host_tokens

    def load(self, ids: list[int]) -> int:
        assert self.tiers is not None
        last, _ = self._match(ids)
        node, tokens = self.tree.resident(last)
        self._lock(node)
        if tokens < MIN_LOAD_TOKENS:
            return 0
        self.tree.lock(last)
        available = self.pool_tokens - self.tree.evictable_tokens - self.tree.locked_tokens
        if available < tokens:
            available += self.tree.evict(tokens - available)
        if available < tokens:
            self.tree.unlock(last)
            return 0
        self.tiers.load(last)
        self.tiers.finish_loads()
        self.tree.unlock(self.locks.pop())
        self.locks.append(last)
        return tokens

    def unlock(self, index: int) -> None:
        self.tree.unlock(self.locks.pop(index))

    def evict(self, tokens: int) -> int:
        return self.tree.evict(tokens)

    def settle(self) -> None:
        if self.tiers is not None:
            for node, _ in self.tiers.unsent:
                self.tree.unlock(node)
            self.tiers.unsent.clear()

    def _lock(self, node: Node) -> None:
        self.tree.lock(node)
        self.locks.append(node)

    def _match(self, ids: list[int]) -> tuple[Node, int]:
        return self.tree.match(self._packed(ids))

    def _packed(self, ids: list[int]) -> bytes:
        return pack(np.array(ids, dtype=np.int32))


def make_case(eviction: str, page_size: int, write_policy: str | None, seed: int, *, sessions: bool = False) -> Case:
    """A sequence of operations like a scheduler's, but in any order."""
    rng = random.Random(f"{eviction} {page_size} {write_policy} {seed}")
    texts: list[list[int]] = [[]]
    operations: list[list[Any]] = []
    locks = requests = 0

    def text() -> list[int]:
        """A part of a known text, and something else."""
        known = rng.choice(texts)
        start = known[: rng.choice([len(known), rng.randint(0, len(known))])]
        texts.append([*start, *rng.choices([1, 2, 3], k=rng.randint(0, 3 * page_size + 3))])
        return texts[-1]

    names = ["match", "insert", "insert", "insert", "lock", "unlock", "evict", "settle"]
    if write_policy is not None:
        names += ["load", "load", "evict", "settle"]
    if sessions:
        names += ["arrive", "arrive", "arrive", "finish", "finish", "finish", "close", "evict"]
    for _ in range(OPERATIONS):
        name = rng.choice(names)
        if name in ("match", "lock", "load"):
            operations.append([name, rng.choice(texts) if rng.random() < 0.7 else text()])
            locks += name != "match"
        elif name in ("arrive", "close"):
            operations.append([name, rng.choice("abcd")])
            requests += name == "arrive"
        elif name == "finish":
            if requests:
                ids = rng.choice(texts) if rng.random() < 0.5 else text()
                requests -= 1
                operations.append([name, ids, 0, rng.randint(0, len(ids)), rng.randint(0, requests)])
        elif name == "insert":
            ids = rng.choice(texts) if rng.random() < 0.4 else text()
            counted = rng.choice([0, 0, rng.randint(0, len(ids))])
            operations += [[name, ids, counted, rng.randint(0, len(ids))]] * rng.randint(1, 2)
        elif name == "evict":
            operations.append([name, rng.randint(1, 8 * page_size)])
        elif name == "settle":
            operations.append([name])
        elif locks:
            locks -= 1
            operations.append([name, rng.randint(0, locks)])
    return {
        "eviction": eviction,
        "page_size": page_size,
        "sessions": sessions,
        "write_policy": write_policy,
        "pool_tokens": 25 * page_size,
        "host_tokens": rng.choice([4, 12, 40]) * page_size,
        "min_load_tokens": MIN_LOAD_TOKENS,
        "operations": operations,
    }


@pytest.fixture(scope="module")
def sglang() -> Iterator[subprocess.Popen[str]]:
    """SGLang's cache in a process of its own; importing it takes most of this file's time."""
    if not (ROOT / ".venv-sglang/.stamp").exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no SGLang here: make sglang-cpu (needs Python 3.11)")
    process = subprocess.Popen(
        [PYTHON, Path(__file__).with_name("sglang_tree.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.sglang
@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_our_tree_does_what_sglangs_does(
    sglang: subprocess.Popen[str], eviction: str, page_size: int, write_policy: str | None
) -> None:
    for seed in range(CASES):
        check_alike(sglang, make_case(eviction, page_size, write_policy, seed), ("python", "rust"))


@pytest.mark.sglang
@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_our_session_tags_do_what_sglangs_do(
    sglang: subprocess.Popen[str], eviction: str, page_size: int, write_policy: str | None
) -> None:
    for seed in range(CASES):
        check_alike(sglang, make_case(eviction, page_size, write_policy, seed, sessions=True), ("python",))


def check_alike(sglang: subprocess.Popen[str], case: Case, cores: tuple[str, ...]) -> None:
    """Each operation of the case returns and leaves the same on ours and on theirs."""
    assert sglang.stdin is not None and sglang.stdout is not None
    ours = Ours(case)
    results = [ours.apply(*operation) for operation in case["operations"]]
    for core in cores:
        sglang.stdin.write(json.dumps(case | {"core": core}) + "\n")
        sglang.stdin.flush()
        theirs = json.loads(sglang.stdout.readline())
        for number, (our, their) in enumerate(zip(results, theirs, strict=True)):
            assert our == their, (core, case["operations"][: number + 1])


def test_the_random_sequences_are_hard_enough() -> None:
    """Else the agreement would be on nothing."""
    for write_policy in WRITE_POLICIES:
        seen = dict.fromkeys(("evicted", "host_evicted", "hits", "host_hits", "loaded"), 0)
        for eviction in EVICTIONS:
            for seed in range(CASES):
                case = make_case(eviction, 1, write_policy, seed)
                ours = Ours(case)
                for operation in case["operations"]:
                    result = ours.apply(*operation)
                    seen["evicted"] += len(result["evicted"])
                    seen["host_evicted"] += len(result["host_evicted"])
                    if operation[0] == "match":
                        seen["hits"] += result["returned"][0] > 0
                        seen["host_hits"] += result["returned"][1] > 0
                    seen["loaded"] += operation[0] == "load" and result["returned"] > 0
        assert seen["evicted"] > 50 and seen["hits"] > 20, (write_policy, seen)
        if write_policy is not None:
            assert min(seen["host_evicted"], seen["host_hits"], seen["loaded"]) > 5, (write_policy, seen)


def test_the_random_sessions_are_hard_enough() -> None:
    """Evictions that another order would have made otherwise, of what sessions refer to, and closings that tell."""
    seen = dict.fromkeys(("other victims", "evicted references", "released"), 0)
    for eviction in EVICTIONS:
        for seed in range(CASES):
            case = make_case(eviction, 1, None, seed, sessions=True)
            ours, untagged = Ours(case), Ours(case | {"sessions": False})
            for operation in case["operations"]:
                before = sum(node.references * node.size for node in ours.tree.nodes())
                result, other = ours.apply(*operation), untagged.apply(*operation)
                seen["other victims"] += result["evicted"] != other["evicted"]
                seen["evicted references"] += operation[0] == "evict" and result["references"] < before
                seen["released"] += operation[0] == "close" and result["references"] < before
    assert min(seen.values()) > 20, seen
