"""What is derived from an agent's name: its sampling seed and the name of its workspace."""

from __future__ import annotations

from hashlib import blake2b

SEED_BITS = 31  # engines take a seed as a signed 32-bit integer


def agent_id(task_id: str, sample: int) -> str:
    """The name of one agent: `task/sample`. No two agents share one, since the sample holds no slash."""
    return f"{task_id}/{sample}"


def agent_seed(seed: int, task_id: str, sample: int) -> int:
    """The sampling seed of one agent, in [0, 2**31).

    It depends on the workload's `tasks.seed`, the task's id and the sample only, so it is the same on every machine, in
    every run, and whatever other tasks there are. BLAKE2b, since Python's own `hash` differs from process to process.
    """
    digest = blake2b(f"{seed}\n{agent_id(task_id, sample)}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)
