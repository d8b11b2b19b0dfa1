"""What a person searches for in the texts of a run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED = re.compile(r"\\.")


class PatternError(ValueError):
    """Not to be searched for; one line that says why and how to mend it."""


@dataclass(frozen=True)
class Pattern:
    """Found within single lines. `source` is a regular expression; where it has no capital letter, case does not
    count."""

    source: str

    @classmethod
    def of(cls, given: str) -> Pattern:
        """TEXT as it is, or /REGEX/. Raises PatternError."""
        if len(given) > 2 and given[0] == given[-1] == "/":
            pattern = cls(given[1:-1])
        elif given:
            pattern = cls(re.escape(given))
        else:
            raise PatternError("there is nothing to search for; give TEXT or /REGEX/")
        try:
            re.compile(pattern.source)
            pc.match_substring_regex(pa.array([""]), pattern._of_lines, ignore_case=pattern.ignore_case)
        except (re.error, pa.ArrowInvalid) as error:
            reason = f"not a regular expression: {' '.join(str(error).split())}"
            raise PatternError(f"{reason}; mend it, or give TEXT without the slashes") from None
        return pattern

    @property
    def ignore_case(self) -> bool:
        """Whether small letters stand for capital ones too."""
        plain = _ESCAPED.sub("", self.source)
        return plain == plain.lower()

    def spans(self, line: str) -> list[tuple[int, int]]:
        """Where it is found in a line."""
        return [found.span() for found in self._compiled.finditer(line) if found[0]]

    def lines(self, text: str) -> Iterator[str]:
        """Those of a text in which it is found."""
        return (line for line in text.split("\n") if self.spans(line))

    def filter(self, column: pc.Expression) -> pc.Expression:
        """The rows whose text may have such a line: RE2 reads the expression a little differently from Python."""
        return pc.match_substring_regex(column, self._of_lines, ignore_case=self.ignore_case)

    @property
    def _of_lines(self) -> str:
        return f"(?m){self.source}"

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.source, re.IGNORECASE if self.ignore_case else 0)
