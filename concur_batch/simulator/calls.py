"""Tool calls read back from what a model says, as SGLang does with `--tool-call-parser hermes`. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call; its arguments are JSON."""

    name: str
    arguments: str


@dataclass(slots=True)
class CallReader:
    """Parts a text that comes in pieces into what is said and what is called.

    Only functions of `names` are calls: others, and what is not JSON, are dropped, as SGLang does. Once a call has
    been opened, the text around calls is dropped as well.
    """

    names: Collection[str]
    calls: list[ParsedCall] = field(default_factory=list)
    _rest: str = ""
    _opened: bool = False

    def feed(self, piece: str) -> tuple[str, Sequence[ParsedCall]]:
        """What the piece adds: text, and calls that are complete with it."""
        self._rest += piece
        said = ""
        if not self._opened:
            place = self._rest.find(_OPEN)
            if place < 0:
                kept = _partial(self._rest, _OPEN)
                said, self._rest = self._rest[: len(self._rest) - kept], self._rest[len(self._rest) - kept :]
                return said, ()
            said, self._rest = self._rest[:place], self._rest[place:]
            self._opened = True
        found: list[ParsedCall] = []
        while (close := self._rest.find(_CLOSE)) >= 0:
            block, self._rest = self._rest[:close], self._rest[close + len(_CLOSE) :]
            found += self._parse(block.partition(_OPEN)[2])
        self.calls += found
        return said, found

    def finish(self) -> str:
        """The text that was held back because a call might have begun there."""
        rest, self._rest = self._rest, ""
        return "" if self._opened else rest

    def _parse(self, block: str) -> list[ParsedCall]:
        try:
            call = json.loads(block)
        except ValueError:
            return []
        if not isinstance(call, dict) or call.get("name") not in self.names:
            return []
        arguments = json.dumps(call.get("parameters") or call.get("arguments", {}), ensure_ascii=False)
        return [ParsedCall(call["name"], arguments)]


def read_calls(text: str, names: Collection[str]) -> tuple[str, list[ParsedCall]]:
    """A whole text: what is said in it before the first call, stripped, and the calls."""
    reader = CallReader(names)
    said, _ = reader.feed(text)
    said += reader.finish()
    return (said.strip() if _OPEN in text else said), reader.calls


def _partial(text: str, mark: str) -> int:
    """How many characters at the text's end may be the beginning of the mark."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0)
