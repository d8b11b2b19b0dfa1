"""SGLang's own radix cache on the CPU, driven by JSON lines: run by the Python of `make sglang-cpu`, not by ours.

Of the server's own: `UnifiedRadixCache` with its tree core and components. Stand-ins: the KV allocator and HiCache's
controller, which only count rows here and give them names. A line is a case of test_like_sglang.py; its answer is a
line with what each operation returned, the sizes after it, and the nodes that it freed.
"""

import json
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

DONE = SimpleNamespace(query=lambda: True, synchronize=lambda: None)


class Rows:
    """Names of rows, and the path of tokens that each row ends."""

    def __init__(self) -> None:
        self.paths: list[list[int]] = []

    def add(self, paths: list[list[int]]) -> torch.Tensor:
        first = len(self.paths)
        self.paths += paths
        return torch.arange(first, len(self.paths), dtype=torch.int64)

    def of(self, rows: torch.Tensor) -> list[list[int]]:
        return [self.paths[row] for row in rows.tolist()]


class Allocator:
    """The device's rows: those of the tree, of `pool_tokens`."""

    device = torch.device("cpu")

    def __init__(self, case: dict[str, Any]) -> None:
        self.page_size = case["page_size"]
        self.pool_tokens = case["pool_tokens"]
        self.rows = Rows()
        self.freed: list[list[int]] = []
        self.cache: UnifiedRadixCache = None

    def available_size(self) -> int:
        return self.pool_tokens - self.cache.evictable_size() - self.cache.protected_size()

    def free_segment(self, rows: torch.Tensor, start_pos: int) -> None:
        self.freed.append(self.rows.of(rows)[-1])

    def mamba_full_cache_donor(self) -> None:
        return None


class Controller:
    """HiCache's: copies at once; they count as arrived when the cache asks next."""

    def __init__(self, case: dict[str, Any], allocator: Allocator) -> None:
        self.write_policy = case["write_policy"]
        self.host_tokens = case["host_tokens"]
        self.used_tokens = 0
        self.rows = Rows()
        self.freed: list[list[int]] = []
        self.ack_write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []
        self._allocator = allocator
        self._written: list[int] = []
        host_pool = SimpleNamespace(shared_allocation_domain=None)
        self.mem_pool_host = SimpleNamespace(
            available_size=lambda: self.host_tokens - self.used_tokens,
            anchor_entry=SimpleNamespace(host_pool=host_pool, host_evict_fn=None),
        )

    def write(self, device_indices: torch.Tensor, node_id: int, extra_pools: None, flush: bool) -> torch.Tensor | None:
        if len(device_indices) > self.host_tokens - self.used_tokens:
            return None
        self.used_tokens += len(device_indices)
        self._written.append(node_id)
        return self.rows.add(self._allocator.rows.of(device_indices))

    def start_writing(self) -> None:
        self.ack_write_queue += [SimpleNamespace(node_ids=[node], finish_event=DONE) for node in self._written]
        self._written.clear()

    def load(self, host_indices: torch.Tensor, node_id: int, extra_pools: None) -> torch.Tensor:
        self.ack_load_queue.append(SimpleNamespace(node_ids=[node_id], finish_event=DONE))
        return self._allocator.rows.add(self.rows.of(host_indices))

    def free(self, host_value: torch.Tensor, pool: str) -> None:
        self.used_tokens -= len(host_value)
        self.freed.append(self.rows.of(host_value)[-1])


class Tree:
    """A cache and the locks that are held on it."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.allocator = Allocator(case)
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self.allocator,
                page_size=case["page_size"],
                eviction_policy=case["eviction"],
                tree_components=(ComponentType.FULL,),
                tree_core_backend=case["core"],
                enable_session_radix_cache=case["sessions"],
            )
        )
        self.allocator.cache = self.cache
        self.controller = None
        if case["write_policy"] is not None:
            # What `init_hicache` does, but for the pools and the threads.
            self.controller = Controller(case, self.allocator)
            self.cache.cache_controller = self.controller
            self.cache.host_pool_group = SimpleNamespace(free=self.controller.free)
            self.cache.components[ComponentType.FULL]._full_kv_pool_host = self.controller
            self.cache.tree_core.set_hicache_enabled()
            self.cache.write_through_threshold = 1 if case["write_policy"] == "write_through" else 2
            self.cache.is_write_back = case["write_policy"] == "write_back"
            self.cache.load_back_threshold = case["min_load_tokens"]
        self.locks: list[Any] = []
        self.requests: list[Any] = []  # of sessions, that have arrived

    def apply(self, name: str, *arguments: Any) -> dict[str, Any]:
        """Do an operation; what it returned and left."""
        self.allocator.freed.clear()
        if self.controller is not None:
            self.controller.freed.clear()
        returned = getattr(self, name)(*arguments)
        if name in ("insert", "finish"):
            self.allocator.freed.clear()  # rows that were in the tree already
        return {
            "returned": returned,
            "evictable": self.cache.evictable_size(),
            "locked": self.cache.protected_size(),
            "host_used": self.controller.used_tokens if self.controller else 0,
            "evicted": list(self.allocator.freed),
            "host_evicted": list(self.controller.freed) if self.controller else [],
            "references": self._references() if self.cache.enable_session_radix_cache else 0,
        }

    def match(self, ids: list[int]) -> list[int]:
        result = self._match(ids)
        return [result.device_prefix_len, result.host_hit_length]

    def insert(self, ids: list[int], counted: int, prompt: int) -> None:
        """As `checkpoint_into_tree` inserts a request whose prompt has so many tokens."""
        self._checkpoint(ids, counted, prompt)

    def arrive(self, session: str) -> None:
        generation = self.cache.ensure_session_generation(session)
        self.requests.append(SimpleNamespace(session=None, session_id=session, session_generation=generation))

    def finish(self, ids: list[int], counted: int, prompt: int, index: int) -> None:
        """A request that has arrived inserts for the last time."""
        end = self._checkpoint(ids, counted, prompt)
        self.cache.session_refs.register_session_ref(self.requests.pop(index), leaf=end)

    def close(self, session: str) -> None:
        self.cache.release_radix_session(session)

    def _checkpoint(self, ids: list[int], counted: int, prompt: int) -> Any:
        end = self._insert(ids, counted, 0).last_device_node
        page_size = self.allocator.page_size
        prompt -= prompt % page_size
        if 0 < prompt < len(ids) - len(ids) % page_size:
            self._insert(ids[:prompt], prompt, 1)
        return end

    def _references(self) -> int:
        """Of sessions to tokens."""
        found, nodes = 0, list(self.cache.tree_core.root_node.children.values())
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            found += node.component_data[ComponentType.FULL].session_ref * len(node.key)
        return found

    def lock(self, ids: list[int]) -> int:
        result = self._match(ids)
        self.locks.append(self.cache.lock(result.last_device_node))
        return result.device_prefix_len

    def load(self, ids: list[int]) -> int:
        """As an admission: lock what the device has, load the rest, and lock that too where it could be loaded."""
        result = self._match(ids)
        lock = self.cache.lock(result.last_device_node)
        loaded = result.host_hit_length > 0 and self.cache.load_back(result.best_match_node)
        if loaded:
            whole = self.cache.lock(result.best_match_node)
            self.cache.unlock(lock)
            lock = whole
            self.cache.loading_check(finish_count=len(self.controller.ack_load_queue))
        self.locks.append(lock)
        return result.host_hit_length if loaded else 0

    def unlock(self, index: int) -> None:
        self.cache.unlock(self.locks.pop(index))

    def evict(self, tokens: int) -> int:
        return self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted

    def settle(self) -> None:
        """What is on its way to the host arrives."""
        if self.controller is not None:
            self.controller.start_writing()
            self.cache.writing_check(finish_count=len(self.controller.ack_write_queue))

    def _match(self, ids: list[int]) -> Any:
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", ids))))

    def _insert(self, ids: list[int], counted: int, priority: int) -> Any:
        whole = len(ids) - len(ids) % self.allocator.page_size
        rows = self.allocator.rows.add([ids[: end + 1] for end in range(whole)])
        key = RadixKey(array("q", ids))
        return self.cache.insert(InsertParams(key=key, value=rows, inserted_len=counted, priority=priority))


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        tree = Tree(case)
        print(json.dumps([tree.apply(*operation) for operation in case["operations"]]), flush=True)


main()
