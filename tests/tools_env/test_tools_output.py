from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tools_env.output import BoundedOutput


def collected(pieces: list[bytes], limit: int) -> BoundedOutput:
    output = BoundedOutput(limit)
    for piece in pieces:
        output.feed(piece)
    return output


@given(st.lists(st.text(max_size=30).map(str.encode), max_size=20))
def test_what_fits_comes_back_whole(pieces: list[bytes]) -> None:
    output = collected(pieces, 4000)
    assert output.text() == b"".join(pieces).decode().replace("\0", "\ufffd")
    assert not output.truncated


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(2, 60))
def test_any_bytes_any_cut(pieces: list[bytes], limit: int) -> None:
    output = collected(pieces, limit)
    whole = b"".join(pieces)
    assert output.total_bytes == len(whole)
    assert output.truncated == (len(whole) > limit)
    assert "\0" not in output.text()
    output.text().encode()


@given(st.text(alphabet="aé€😀\n", min_size=40, max_size=200), st.integers(8, 60), st.integers(1, 7))
def test_a_cut_splits_no_character_and_the_count_is_right(text: str, limit: int, step: int) -> None:
    data = text.encode()
    output = collected([data[i : i + step] for i in range(0, len(data), step)], limit)
    if len(data) <= limit:
        assert output.text() == text
        return
    head, marker, tail = output.text().rpartition("\n[... ")
    number, _, rest = tail.partition(" bytes dropped ...]\n")
    assert marker and "\ufffd" not in output.text()
    assert text.startswith(head) and text.endswith(rest)
    # Line ends beside the marker are folded into it, everything else is counted.
    assert 0 <= len(data) - int(number) - len(head.encode()) - len(rest.encode()) <= limit
    assert text.count("\n") or len(data) == int(number) + len(head.encode()) + len(rest.encode())


def test_worked_example() -> None:
    assert collected([b"0123456789"], 4).text() == "01\n[... 6 bytes dropped ...]\n89"


def test_memory_stays_bounded() -> None:
    output = BoundedOutput(1000)
    for _ in range(2000):
        output.feed(b"x" * 65_536)
    assert output.total_bytes == 2000 * 65_536
    assert len(output._head) + len(output._tail) <= 2000
