"""Which parts of a table are merged and which of its files hold its rows, told from names and sizes alone.

* `<recorder>-<number>.parquet`: the rows of one journal segment, as they were stored while the run went on.
* `<recorder>-<last>.<count>.parquet`: a merged part, the rows of `count` segments, `last` the highest number of them;
  all their numbers are in its metadata. It may be of one segment.
* `.<recorder>-<last>.<count>.parquet.new`: a merged part that is whole, while parts that it replaces are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Set
from itertools import groupby
from typing import NamedTuple

PART_SUFFIX = ".parquet"
_PENDING_SUFFIX = ".new"
_PART = re.compile(r"([A-Za-z0-9_-]+)-([0-9]{6,})(?:\.([0-9]+))?\.parquet")


class Part(NamedTuple):
    """A part by its name. Each segment of a recorder is in one part of a table, so `last` tells parts apart."""

    recorder: str
    last: int
    segment_count: int = 0  # of a merged part, else 0

    @property
    def name(self) -> str:
        merged = f".{self.segment_count}" if self.segment_count else ""
        return f"{self.recorder}-{self.last:06d}{merged}{PART_SUFFIX}"

    @property
    def pending_name(self) -> str:
        """Its name before the parts that it replaces are gone; no pattern for Parquet files finds it."""
        return f".{self.name}{_PENDING_SUFFIX}"


def part_of(file_name: str) -> Part | None:
    """The part of that name, or None for any other file."""
    match = _PART.fullmatch(file_name)
    return Part(match[1], int(match[2]), int(match[3] or 0)) if match else None


def pending(file_names: Iterable[str]) -> list[Part]:
    """The merged parts among the files that have not got their own names yet."""
    found = (part_of(name[1:].removesuffix(_PENDING_SUFFIX)) for name in file_names if name.endswith(_PENDING_SUFFIX))
    return [part for part in found if part is not None]


def groups(bytes_of: Mapping[Part, int], most_bytes: int) -> list[list[Part]]:
    """The parts to merge, those of each group into one: neighbours of one recorder, at most `most_bytes` together.

    Part by part, each joins the group before it if it fits; a merged part that stays alone is left as it is.
    """
    found: list[list[Part]] = []
    for _, parts in groupby(sorted(bytes_of), key=lambda part: part.recorder):
        group_bytes = most_bytes + 1
        for part in parts:
            group_bytes += bytes_of[part]
            if group_bytes > most_bytes:
                found.append([])
                group_bytes = bytes_of[part]
            found[-1].append(part)
    return [group for group in found if len(group) > 1 or not group[0].segment_count]


def replaced(file_names: Iterable[str], part: Part, segments: Set[int]) -> list[str]:
    """The files whose rows are in a merged part of these segments, so that they are to be deleted once it is there."""
    found = ((name, part_of(name)) for name in file_names)
    return sorted(
        name for name, old in found if old and old != part and old.recorder == part.recorder and old.last in segments
    )


def standing(file_names: Collection[str], segments: Mapping[Part, Set[int]]) -> list[str]:
    """The files that hold a table's rows, each row once; `segments` are those of the pending parts."""
    visible = {name for name in file_names if name.endswith(PART_SUFFIX) and not name.startswith(".")}
    waiting = {part for part in segments if part.name not in visible}
    gone = {name for part in waiting for name in replaced(visible, part, segments[part])}
    return sorted((visible - gone) | {part.pending_name for part in waiting})


def disturbed(before: Collection[str], after: Collection[str]) -> bool:
    """Whether a merge went on between two listings of a table, so that the first may not be all of its rows.

    A listing beside a rename may show neither the old name nor the new one, so a merged part that is new counts too.
    One that comes second of three, none of them disturbed, is what was there at one moment.
    """
    new, gone = set(after) - set(before), set(before) - set(after)
    merged = any(part.segment_count for part in map(part_of, new) if part is not None)
    return merged or bool(pending(new | gone)) or any(part_of(name) for name in gone)


def to_ranges(numbers: Iterable[int]) -> str:
    """Numbers as text: `0-3,7`."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in ranges)


def from_ranges(text: str) -> frozenset[int]:
    """The numbers of such a text. Raises ValueError for any other text."""
    spans = [[int(number) for number in item.split("-")] for item in text.split(",")]
    return frozenset(number for span in spans for number in range(span[0], span[-1] + 1))
