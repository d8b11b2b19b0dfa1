"""What became of a run that faults befell, and all outcomes as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter
from rich import box
from rich.table import Table

from concur_batch.bench.chaos.comparison import Differences
from concur_batch.bench.chaos.plan import KINDS

_COLUMNS = ("what befell them", "runs", "faults", "resumes", "turns lost", "rows doubled", "other ids", "other results",
            "other workspaces", "orphans")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run. `struck` are the kinds of the faults in their order, `told` says of each when it struck; `missed`
    had no victim before the command ended. `resumes` counts the commands after the first, `on_record` the turns on
    record at the end of each command, `exit_codes` theirs. `problems` are all else that should not be.
    """

    number: int
    struck: tuple[str, ...]
    told: tuple[str, ...]
    missed: tuple[str, ...]
    exit_codes: tuple[int, ...]
    on_record: tuple[int, ...]
    seconds: float
    differences: Differences
    orphans: int
    problems: tuple[str, ...]

    @property
    def resumes(self) -> int:
        """Commands after the first."""
        return len(self.exit_codes) - 1

    @property
    def good(self) -> bool:
        """Whether it ended as if nothing had befallen it."""
        return self.differences.none and not self.orphans and not self.problems

    def line(self) -> str:
        """For people."""
        commands = ", ".join(f"{turns} ({code})" for turns, code in zip(self.on_record, self.exit_codes, strict=True))
        missed = f"; too late: {', '.join(self.missed)}" if self.missed else ""
        end = "equal" if self.good else f"NOT EQUAL: {self._wrong()}"
        return (
            f"{self.number:3}  {'; '.join(self.told) or 'nothing'}{missed} | resumes {self.resumes} | turns on record "
            f"(exit code) {commands} | {self.seconds:.0f} s | {end}"
        )

    def to_json(self) -> str:
        """On one line, for `outcome_of`."""
        return json.dumps(asdict(self))

    def _wrong(self) -> str:
        counts = {**asdict(self.differences), "orphans": self.orphans}
        return "; ".join([*(f"{name} {count}" for name, count in counts.items() if count), *self.problems])


def outcome_of(line: str) -> Outcome:
    """Read back what `to_json` has written."""
    return TypeAdapter(Outcome).validate_json(line)


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """A row a kind of fault, over all runs that it befell among others, and one of all runs."""
    table = Table(box=box.MARKDOWN)
    for number, name in enumerate(_COLUMNS):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for kind in KINDS:
        befallen = [outcome for outcome in outcomes if kind in outcome.struck]
        table.add_row(kind, *_row(befallen, sum(outcome.struck.count(kind) for outcome in befallen)))
    table.add_row("all", *_row(outcomes, sum(len(outcome.struck) for outcome in outcomes)))
    return table


def _row(outcomes: Sequence[Outcome], faults: int) -> list[str]:
    found = [outcome.differences for outcome in outcomes]
    counts = (
        len(outcomes),
        faults,
        sum(outcome.resumes for outcome in outcomes),
        sum(each.lost for each in found),
        sum(each.doubled for each in found),
        sum(each.ids for each in found),
        sum(each.results for each in found),
        sum(each.workspaces for each in found),
        sum(outcome.orphans for outcome in outcomes),
    )
    return [f"{count:,}" for count in counts]
