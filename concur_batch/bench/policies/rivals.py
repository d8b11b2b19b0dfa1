"""Policies of others, as far as their public descriptions go, to compare with; no workload can name them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from concur_batch.control.law import Branch
from concur_batch.control.load import Load
from concur_batch.control.policy import Policy, Verdict
from concur_batch.control.room import Room
from concur_batch.engine.signals import Sample
from concur_batch.workload.schema import AnyControl, NoControl


@dataclass(slots=True)
class EpisodeCap:
    """Like prime-rl's adaptive concurrency: a cap of agents that grows by a quarter while KV usage is below 0.6 and at
    least 0.9 of it is used, once a turnover; above 0.8 it is cut to 0.7 / usage of what runs, above 0.9 to half.

    Theirs starts episodes only and cancels the youngest above 0.9, which loses their work; this one pauses them, which
    is kinder. A turnover is taken as ten periods.
    """

    initial_window: int = 16
    _since_growth: int = 0

    def start(self, places_held: int, pool_tokens: int | None) -> Verdict:
        return Verdict(None, places_held or self.initial_window, Branch.HOLD, "the start")

    def step(self, capacity: int | None, sample: Sample, load: Load) -> Verdict:
        assert capacity is not None, "it starts with a cap"
        self._since_growth += 1
        if sample.stale or sample.usage is None:
            return Verdict(capacity, capacity, Branch.HOLD, "no usage")
        after, branch = capacity, Branch.HOLD
        if sample.usage > 0.9:
            after, branch = max(1, capacity // 2), Branch.CUT
        elif sample.usage > 0.8:
            after, branch = max(1, int(capacity * 0.7 / sample.usage)), Branch.CUT
        elif sample.usage < 0.6 and load.waiting and self._since_growth >= 10:
            after, branch = max(capacity + 1, int(capacity * 1.25)), Branch.GROW
        if branch is not Branch.HOLD:
            self._since_growth = 0
        return Verdict(capacity, after, branch, f"usage {sample.usage:.2f}")

    def adopt(self, earlier: Policy) -> None:
        """Its settings do not change."""


@dataclass(slots=True)
class ProgramBudget:
    """Like ThunderAgent: programs run while the sum of their tokens fits the pool, those that wait for tools counted
    in; what is over is paused, the smallest first, and comes back, the smallest first, where there is room again.

    Theirs estimates tokens from characters and counts a shared beginning for each; this one knows both.
    """

    def start(self, places_held: int, pool_tokens: int | None) -> Verdict:
        assert pool_tokens is not None, "the simulated engine tells it"
        return self._verdict(None, pool_tokens)

    def step(self, capacity: int | None, sample: Sample, load: Load) -> Verdict:
        assert load.pool_tokens is not None
        return self._verdict(capacity, load.pool_tokens)

    def adopt(self, earlier: Policy) -> None:
        """Its settings do not change."""

    @staticmethod
    def _verdict(before: int | None, pool_tokens: int) -> Verdict:
        return Verdict(before, None, Branch.HOLD, "the pool", Room(pool_tokens, pool_tokens))


# Of the control block a rival takes the period and the orders only; its name there is for the table's columns.
EPISODES = NoControl(policy="none", victim_order="newest")
PROGRAMS = NoControl.model_validate(
    {
        "policy": "none",
        "victim_order": "smallest",
        "resume_order": "smallest",
        "period_seconds": 5.0,
        "extensions": {"longest_pause_seconds": 1800.0},
    }
)


def make_episode_cap(control: AnyControl, agents: int) -> Policy:
    """For `simulate_batch`."""
    return EpisodeCap()


def make_program_budget(control: AnyControl, agents: int) -> Policy:
    """For `simulate_batch`."""
    return ProgramBudget()
