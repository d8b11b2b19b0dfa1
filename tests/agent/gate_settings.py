"""Under what rules, with what agents and on what pools random schedules run."""

from __future__ import annotations

from hypothesis import strategies as st

from concur_batch.control.member import Traits
from concur_batch.control.rules import Rules

LONG_TOKENS = 200
RULES = st.builds(
    Rules,
    per_generation=st.sampled_from([False, False, True]),
    victim_order=st.sampled_from(["newest", "oldest", "largest", "smallest", "longest_idle"]),
    resume_order=st.sampled_from(["oldest", "newest", "smallest", "largest"]),
    resume_age_seconds=st.none() | st.just(8.0),
    max_consecutive_pauses=st.none() | st.integers(1, 2),
    move_evicted_share=st.sampled_from([0.0, 0.5, 1.0]),
    longest_pause_seconds=st.none() | st.just(9.0),
    longest_tool_wait_seconds=st.none() | st.just(5.0),
    long_request_tokens=st.none() | st.just(LONG_TOKENS),
    growth_turns=st.none() | st.integers(1, 3),
    shares=st.just({"x": 2.0}),
)
TRAITS = st.builds(
    Traits, priority=st.integers(0, 1), group=st.sampled_from(["", "x"]), deadline_seconds=st.none() | st.floats(1, 99)
)
# Of one size, or the first smaller than some histories, or of sizes that nobody knows.
SIZES = st.sampled_from([(1000, 1000, 1000), (500, 1000, 1000), (None, None, None)])
