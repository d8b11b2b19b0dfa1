"""The rules by which agents are chosen: what a workload's `control` block says, without its policy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from concur_batch.workload.schema import AnyControl, RequestCap, ResumeOrder, TokenWindow, VictimOrder

# What the paper leaves open and no setting changes; a run's manifest repeats it beside the settings.
CHOICES = {
    "resume_before_new": "paused agents before new ones, but for the last wave under token_window",
    "pause_point": "between a tool's end and the next generation",
    "placement": "a new agent goes to the pool with most free places",
    "after_controller_restart": "no grants until every host has told what it holds, then W = places held",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """Field by field as in the workload's `control` block and its `extensions`, where each is explained.

    `last_wave_first`: once no more agents are left to begin than hold a place, these go before the paused ones. They
    have the longest way to go, and the batch ends with its last agent. `feed_idle`: where nobody generates, one more
    is let in whatever the room says.
    """

    per_generation: bool = False
    last_wave_first: bool = False
    feed_idle: bool = False
    victim_order: VictimOrder = "newest"
    resume_order: ResumeOrder = "oldest"
    resume_age_seconds: float | None = None
    max_consecutive_pauses: int | None = None
    move_evicted_share: float = 0.5
    longest_pause_seconds: float | None = None
    longest_tool_wait_seconds: float | None = None
    long_request_tokens: int | None = None
    growth_turns: int | None = None
    room_share: float = 0.9
    shares: Mapping[str, float] = field(default_factory=dict)


def make_rules(control: AnyControl) -> Rules:
    """The rules of a `control` block."""
    extensions = control.extensions
    return Rules(
        per_generation=isinstance(control, RequestCap),
        last_wave_first=isinstance(control, TokenWindow),
        feed_idle=isinstance(control, TokenWindow),
        victim_order=control.victim_order,
        resume_order=control.resume_order,
        resume_age_seconds=control.resume_age_seconds,
        max_consecutive_pauses=control.max_consecutive_pauses,
        move_evicted_share=control.move_evicted_share,
        longest_pause_seconds=extensions.longest_pause_seconds,
        longest_tool_wait_seconds=extensions.longest_tool_wait_seconds,
        long_request_tokens=extensions.long_request_tokens,
        growth_turns=extensions.growth_turns,
        room_share=extensions.room_share,
        shares=extensions.shares,
    )
