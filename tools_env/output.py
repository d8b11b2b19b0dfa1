"""Keeping the head and the tail of an output of any length in bounded memory."""

from __future__ import annotations


class BoundedOutput:
    """Collects bytes; once they are more than `limit_bytes`, only the first and the last half of that are kept.

    Memory stays within about twice the limit however much is fed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    @property
    def truncated(self) -> bool:
        """Whether more was fed than is kept."""
        return self.total_bytes > self._head_bytes + self._tail_bytes

    def feed(self, data: bytes) -> None:
        """Takes the next piece."""
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_bytes :] if len(data) > self._tail_bytes else data
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes]

    def text(self) -> str:
        """What was kept, as text: NUL and what is not UTF-8 become U+FFFD, no character is cut in two, and a line
        `[... N bytes dropped ...]` stands where bytes are missing."""
        if not self.truncated:
            return _clean(bytes(self._head + self._tail))
        head = _without_cut_end(bytes(self._head))
        tail = _without_cut_start(bytes(self._tail[-self._tail_bytes :]))
        dropped = self.total_bytes - len(head) - len(tail)
        return f"{_clean(head).rstrip(chr(10))}\n[... {dropped} bytes dropped ...]\n{_clean(tail).lstrip(chr(10))}"


def _clean(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _without_cut_end(data: bytes) -> bytes:
    """`data` without the bytes of a UTF-8 character that its end cuts off."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if needed > back else data
    return data


def _without_cut_start(data: bytes) -> bytes:
    """`data` without the continuation bytes (at most three) of a UTF-8 character that its start cuts off."""
    for start in range(min(4, len(data))):
        if data[start] & 0xC0 != 0x80:
            return data[start:]
    return data
