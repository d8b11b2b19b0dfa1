"""`concur replay-from`: what other programs' agents did, as a load for any policy and engine."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from concur_batch.agent.tokenizer import TokenizerError, load_tokenizer
from concur_batch.cli.refusal import refuse
from concur_batch.foreign.documents import Unreadable, read_file
from concur_batch.foreign.file import count_agents, tokenizer_digest, write_agents
from concur_batch.foreign.formats import documents, read
from concur_batch.foreign.replayed import Reader, Replayed
from concur_batch.foreign.trajectory import Unfit
from concur_batch.trace.files import TraceError
from concur_batch.workload.errors import SHOWN_PROBLEMS
from concur_batch.workload.schema import Trajectories

_TOOL_SECONDS: tuple[float, float] = Trajectories.model_fields["tool_seconds"].default


@dataclass(slots=True)
class _Account:
    """What was read, and what was not: by reason how often, and where first."""

    agents: int = 0
    turns: int = 0
    new_tokens: int = 0
    output_tokens: int = 0
    recorded_ids: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    timings: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, replayed: Replayed) -> None:
        assert replayed.agent.trajectory is not None, "it is replayed"
        steps = replayed.agent.trajectory.steps
        self.agents += 1
        self.turns += len(steps)
        self.new_tokens += sum(len(step.new_ids) for step in steps)
        self.output_tokens += sum(step.output_tokens for step in steps)
        self.recorded_ids += replayed.recorded_ids
        self.formats[replayed.format] += 1
        self.timings.update(timing for timings in replayed.timings for timing in timings)
        self.seconds += [exchange.result.seconds for step in steps for exchange in step.exchanges]

    def skip(self, where: str, reason: str) -> None:
        reason = " ".join(reason.split())  # of a template, or of the system
        self.skipped[reason] += 1
        self.first.setdefault(reason, where)


class _Nothing(Exception):
    """No trajectory was read: there is nothing to write."""


def replay_from(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Trajectories of mini-swe-agent (.traj.json), ATIF, or `messages` (.jsonl); .gz too.", metavar="FILE"
        ),
    ],
    model: Annotated[
        Path,
        typer.Option(help="Directory of the model that is to replay them: its tokenizer and template.", metavar="DIR"),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write, for `concur run --replay`.", metavar="FILE")
    ] = Path("replay.parquet"),
    tool_seconds: Annotated[
        str | None,
        typer.Option(
            help="Seconds of calls whose times no file tells, drawn log-uniformly. Default: "
            f"{_TOOL_SECONDS[0]:g}:{_TOOL_SECONDS[1]:g}.",
            metavar="MIN:MAX",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="From which those and the agents' seeds are drawn.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a load to replay of trajectories that other programs have recorded."""
    span = _TOOL_SECONDS if tool_seconds is None else _span(tool_seconds)
    _check_output(output, files)
    account = _Account()
    try:
        reader = Reader(load_tokenizer(model), span, seed)
        write_agents(output, _agents(files, reader, account), tokenizer_digest(model))
    except _Nothing:
        refuse("\n".join([*_skipped(account), "concur: no trajectory was read, and nothing is written"]), 2)
    except TokenizerError as error:
        refuse(f"concur: {error}", 2)
    except TraceError as error:
        refuse(f"concur: {error}", 1)
    if as_json:
        print(json.dumps(_plain(account, output)))
        return
    console = Console(highlight=False)
    for line in _report(account, output, span):
        console.print(line, soft_wrap=True, markup=False)


def _agents(files: Sequence[Path], reader: Reader, account: _Account) -> Iterator[Replayed]:
    """The agents of all files, accounted for. Raises _Nothing where there are none."""
    shown: Iterable[Path] = files
    if sys.stderr.isatty():
        shown = track(files, "reading", console=Console(stderr=True), transient=True)
    for path in shown:
        for found in read_file(path):
            if isinstance(found, Unreadable):
                account.skip(found.where, found.reason)
                continue
            parts = list(documents(found.value))
            for number, part in enumerate(parts):
                name = found.name if len(parts) == 1 else f"{found.name}-{number}"
                try:
                    replayed = reader.agent(read(part, name), found.where)
                except Unfit as error:
                    account.skip(found.where, str(error))
                    continue
                account.add(replayed)
                yield replayed
    if not account.agents:
        raise _Nothing


def _report(account: _Account, output: Path, span: tuple[float, float]) -> Iterator[str]:
    formats = ", ".join(f"{count:,} of {name}" for name, count in sorted(account.formats.items()))
    yield f"{output}: {account.agents:,} agents ({formats}), {account.turns:,} turns"
    estimated = account.agents - account.recorded_ids
    told = f"ids as recorded for {account.recorded_ids:,} agents, made from texts for {estimated:,}"
    yield f"tokens: {account.new_tokens:,} new, {account.output_tokens:,} of outputs; {told}"
    kinds = {
        "measured": "measured",
        "between_steps": "from step to step, with a generation in them",
        "drawn": f"told by no file and drawn from {span[0]:g}:{span[1]:g} s",
    }
    timings = ", ".join(f"{account.timings[kind]:,} {said}" for kind, said in kinds.items() if account.timings[kind])
    if account.seconds:
        median, longest = statistics.median(account.seconds), max(account.seconds)
        yield f"calls: {timings}; median {median:.3g} s, longest {longest:,.3g} s"
    yield from _skipped(account)
    yield "To replay them, and to simulate that:"
    yield f"concur run WORKLOAD.YAML --replay {output}"
    yield f"concur simulate WORKLOAD.YAML --from {output}"


def _skipped(account: _Account) -> Iterator[str]:
    shown = account.skipped.most_common(SHOWN_PROBLEMS)
    for reason, count in shown:
        yield f"skipped {count:,}: {account.first[reason]}{'' if count == 1 else ' and others'}: {reason}"
    rest = account.skipped.total() - sum(count for _, count in shown)
    if rest:
        yield f"skipped {rest:,} more"


def _plain(account: _Account, output: Path) -> dict[str, Any]:
    return {
        "file": str(output),
        "agents": account.agents,
        "formats": dict(account.formats),
        "turns": account.turns,
        "new_tokens": account.new_tokens,
        "output_tokens": account.output_tokens,
        "agents_with_recorded_ids": account.recorded_ids,
        "calls": dict(account.timings),
        "tool_seconds": sum(account.seconds),
        "skipped": [
            {"reason": reason, "count": count, "first": account.first[reason]}
            for reason, count in account.skipped.most_common()
        ],
    }


def _check_output(output: Path, files: Sequence[Path]) -> None:
    """Nothing but an earlier file of this command is written over."""
    if output.resolve() in {path.resolve() for path in files}:
        refuse(f"concur: --output {output}: is one of the files to read; give another", 2)
    if output.exists():
        try:
            count_agents(output)
        except TraceError:
            refuse(f"concur: --output {output}: is there, and this command has not made it; give another", 2)


def _span(text: str) -> tuple[float, float]:
    least, _, most = text.partition(":")
    try:
        span = float(least), float(most)
    except ValueError:
        span = -1.0, 0.0
    if not (0 < span[0] <= span[1] < float("inf") or span == (0, 0)):
        refuse(f"concur: --tool-seconds {text}: give the least and the most as 0.2:2, or 0:0 for no waits", 2)
    return span
