"""What the histories of a host have in common."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.agent.beginning import Beginning

histories = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=6)


@given(histories)
def test_it_is_the_common_prefix_of_all_so_far(seen: list[list[int]]) -> None:
    beginning = Beginning()
    for number, ids in enumerate(seen):
        found = beginning.common_with(np.array(ids, np.int32))
        alike = [len(set(tokens)) == 1 for tokens in zip(*seen[: number + 1], strict=False)]
        assert found == ((*alike, False).index(False) if number else None)


def test_a_history_that_its_agent_goes_on_writing_changes_nothing() -> None:
    beginning, ids = Beginning(), np.array([1, 2, 3], np.int32)
    beginning.common_with(ids)
    ids[:] = 9
    assert beginning.common_with(np.array([1, 2, 4], np.int32)) == 2
