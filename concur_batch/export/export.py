"""An export from its runs to its files."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from concur_batch.export.assembly import assembled
from concur_batch.export.card import Card, card
from concur_batch.export.duplicates import Sameness
from concur_batch.export.form import Form, Unfit
from concur_batch.export.history import Rewritten
from concur_batch.export.outcome import Outcome, Volume
from concur_batch.export.publishing import publishing
from concur_batch.export.selection import COLUMNS, Selection, in_order, stage
from concur_batch.export.shards import Kind, Shards
from concur_batch.export.sieve import Sieve
from concur_batch.export.split import Split
from concur_batch.trace.reading import Run
from concur_batch.trace.schema import AGENTS

_CHOSEN = pa.schema([AGENTS.field(name) for name in COLUMNS] + [pa.field("run", pa.int32(), nullable=False)])

OnProgress = Callable[[str, int, int | None], None]
"""Told of what is done, how much of it, and of how much."""


class NothingLeft(Exception):
    """Every trajectory was dropped; `outcome` says why."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("nothing is left to export: every trajectory was dropped")
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Export:
    """What is exported, and how. `forms` are the format by the run's name, all of one schema, and made with
    `rewritten`."""

    format: str
    runs: Sequence[Run]
    forms: Mapping[str, Form]
    selection: Selection = field(default_factory=Selection)
    best: int | None = None
    sameness: Sameness | None = None
    split: Split = field(default_factory=Split)
    kind: Kind = "parquet"
    shard_bytes: int = 500_000_000
    rewritten: Rewritten = "split"

    @property
    def schema(self) -> pa.Schema:
        return next(iter(self.forms.values())).schema

    def write(self, out: Path, on_progress: OnProgress = lambda what, done, total: None) -> Outcome:
        """Write the data set to a directory that is not there yet, as a whole.

        Raises NothingLeft, BadExpression, Occupied and TraceError, and then nothing is left there.
        """
        with publishing(out) as staging:
            outcome = Outcome({name: Volume() for name in self.split.names})
            chosen = self._choose(outcome, on_progress)
            scratch = staging / "scratch"
            scratch.mkdir()
            self._write(chosen, scratch, staging, outcome, on_progress)
            scratch.rmdir()
            if not outcome.kept:
                raise NothingLeft(outcome)
            (staging / "README.md").write_text(card(self._card(outcome)), encoding="utf-8")
        return outcome

    def _choose(self, outcome: Outcome, on_progress: OnProgress) -> pa.Table:
        """The agents to read, in their order; those that are dropped by their final rows are counted."""
        self.selection.check()
        found = [pa.Table.from_batches([], _CHOSEN)]
        dropped: Counter[str] = Counter()
        columns = None if self.selection.where is not None else [*COLUMNS, "status"]
        for number, run in enumerate(self.runs):
            ended = 0
            for rows in run.batches("agents", columns, pc.field("final")):
                ended += rows.num_rows
                on_progress("agents", outcome.ended + ended, None)
                reasons = self.selection.reasons(rows)
                dropped.update(reasons.drop_null().to_pylist())
                kept = rows.select(list(COLUMNS)).filter(pc.is_null(reasons))
                found.append(
                    pa.Table.from_batches([kept]).append_column(
                        _CHOSEN.field("run"), pa.array([number] * kept.num_rows, pa.int32())
                    )
                )
            outcome.ended += ended
            outcome.not_ended[run.manifest["run"]] = int(run.manifest["agents"]) - ended
        outcome.dropped = {reason: dropped[reason] for reason in sorted(dropped, key=lambda name: (stage(name), name))}
        return in_order(pa.concat_tables(found)).combine_chunks()

    def _write(self, chosen: pa.Table, scratch: Path, staging: Path, outcome: Outcome, on_progress: OnProgress) -> None:
        sieve = Sieve(self.forms, self.best, self.sameness)
        shards = {name: Shards(staging, name, self.schema, self.kind, self.shard_bytes) for name in self.split.names}
        dropped: Counter[str] = Counter()

        def on_read(table: str, rows: int) -> None:
            on_progress(table, rows, None)

        for number, trajectory in enumerate(assembled(self.runs, chosen, scratch, on_read), 1):
            on_progress("trajectories", number, chosen.num_rows)
            try:
                records = sieve.records(trajectory)
            except Unfit as why:
                dropped[str(why)] += 1
                continue
            agent = trajectory.agent
            split = self.split.of(agent["task_id"])
            shards[split].add(records, agent["context_tokens"])
            outcome.splits[split].add(agent, len(records))
        for name, files in shards.items():
            paths = files.close()
            outcome.splits[name].files = len(paths)
            outcome.splits[name].size_bytes = sum(path.stat().st_size for path in paths)
        outcome.dropped |= {reason: dropped[reason] for reason in sorted(dropped)}
        seen: Counter[str] = Counter()
        for form in self.forms.values():
            seen.update(form.report())
        outcome.report = dict(seen)

    def _card(self, outcome: Outcome) -> Card:
        return Card(
            self.format,
            self.kind,
            self.schema,
            self.options(),
            outcome,
            [run.manifest for run in self.runs],
            importlib.metadata.version("concur-batch"),
        )

    def options(self) -> list[str]:
        """The options of the command that make this selection and split."""
        selection, split = self.selection, self.split
        told: list[tuple[str, object]] = [("--status", status) for status in selection.statuses]
        told += [("--reward-min", selection.reward_min), ("--turns", selection.turns), ("--tokens", selection.tokens)]
        told += [("--task", pattern) for pattern in selection.tasks]
        told += [("--where", selection.where), ("--dedup", self.sameness), ("--best", self.best)]
        shares = ",".join(f"{name}={share:g}" for name, share in split.shares)
        told += [("--split", shares), ("--seed", split.seed)] if len(split.shares) > 1 else []
        told += [("--rewritten", self.rewritten)]
        return [f"{name} {value}" for name, value in told if value is not None]
