"""Who has hung is told from who is late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from concur_batch.driver.silence import Silence


def test_a_part_has_hung_once_it_was_waited_for_in_vain_for_long_enough() -> None:
    silence = Silence(12.0)
    assert silence.hung({"a": False, "b": True}, 5.0) == []
    assert silence.hung({"a": False, "b": False}, 5.0) == []
    assert silence.hung({"a": False, "b": True}, 5.0) == ["a"]
    assert silence.hung({"a": False, "b": False}, 5.0) == []  # it has its time anew


def test_a_word_in_between_or_a_failure_at_once_is_no_hanging() -> None:
    silence = Silence(12.0)
    for answered in (False, False, True, False, False, True):
        assert silence.hung({"a": answered}, 5.0) == []
    for _ in range(100):  # as one that restarts: nobody has waited for it
        assert silence.hung({"a": False}, 0.001) == []
    assert silence.hung({}, 5.0) == []  # nobody asks it any more
    assert silence.hung({"a": False}, 11.0) == []


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 10)), max_size=40), st.floats(1, 30))
def test_it_takes_silence_of_that_length_and_no_longer(looks: list[tuple[bool, float]], most_seconds: float) -> None:
    silence, waited_seconds = Silence(most_seconds), 0.0
    for answered, seconds in looks:
        waited_seconds = 0.0 if answered else waited_seconds + seconds
        hung = waited_seconds >= most_seconds
        assert silence.hung({"a": answered}, seconds) == (["a"] if hung else [])
        if hung:
            waited_seconds = 0.0
