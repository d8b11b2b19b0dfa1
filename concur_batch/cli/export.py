"""`concur export`: trajectories as training data."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, TypeVar, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from concur_batch.agent.spec import Status
from concur_batch.cli.refusal import refuse
from concur_batch.export import forms
from concur_batch.export.duplicates import SAMENESSES
from concur_batch.export.export import Export, NothingLeft, OnProgress
from concur_batch.export.form import Form
from concur_batch.export.outcome import Outcome, Volume
from concur_batch.export.publishing import Occupied
from concur_batch.export.selection import BadExpression, Range, Selection, read_range
from concur_batch.export.shards import KINDS
from concur_batch.export.split import Split, read_shares
from concur_batch.report.text import amount
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run
from concur_batch.workload.explain import one_of

_STATUSES: tuple[Status, ...] = get_args(Status)
_Word = TypeVar("_Word", bound=str)
_LEAST_SHARD_MB = 0.01


def export(
    runs: Annotated[list[Path], typer.Argument(help="The runs' directories.", metavar="RUN…")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The data set's directory, which is not there yet.", metavar="DIR")
    ],
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join(forms.FORMS)}.", metavar="FORMAT")],
    files: Annotated[str, typer.Option(help=f"{' or '.join(KINDS)}.", metavar="KIND")] = "parquet",
    shard_mb: Annotated[float, typer.Option(help="About so large is a file, in MB.", metavar="MB")] = 500,
    status: Annotated[
        list[str] | None,
        typer.Option(help=f"Agents that ended so: {', '.join(_STATUSES)}. Default: finished.", metavar="STATUS"),
    ] = None,
    reward_min: Annotated[float | None, typer.Option(help="With at least this reward.", metavar="REWARD")] = None,
    turns: Annotated[str | None, typer.Option(help="With so many turns: 2:10, 2: or :10.", metavar="MIN:MAX")] = None,
    tokens: Annotated[
        str | None, typer.Option(help="With so many tokens in the whole history.", metavar="MIN:MAX")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="Of tasks whose id is like 'math-*'; not of those like '!math-1*'.", metavar="PATTERN"),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="For whose row of `agents` this is true: \"end_reason = 'submit'\".", metavar="SQL"),
    ] = None,
    dedup: Annotated[
        str | None,
        typer.Option(help="Of equal ones one: in all ids (exact), in prompt and words (text).", metavar="HOW"),
    ] = None,
    best: Annotated[
        int | None, typer.Option(help="So many of each task: by reward, then fewer tokens.", metavar="N")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Splits by task: train=0.9,val=0.1. Default: all is train.", metavar="SHARES")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides which task is in which split.")] = 0,
    rewritten: Annotated[
        str, typer.Option(help=f"Rewritten histories: {' or '.join(forms.REWRITTEN)}.", metavar="HOW")
    ] = forms.REWRITTEN[0],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write trajectories as a data set for training, with a card. What is dropped, and why, is counted."""
    make_form = forms.FORMS[_one_of("--format", format_, tuple(forms.FORMS))]
    how = _one_of("--rewritten", rewritten, forms.REWRITTEN)
    statuses = dict.fromkeys(_one_of("--status", name, _STATUSES) for name in status or ("finished",))
    if best is not None and best < 1:
        refuse(f"concur: --best {best}: nothing would be left; give at least 1", 2)
    if not shard_mb >= _LEAST_SHARD_MB:
        refuse(f"concur: --shard-mb {shard_mb:g}: too small for a file; give at least {_LEAST_SHARD_MB}", 2)
    opened = _open(runs)
    console = Console(stderr=as_json)
    try:
        made = {run.manifest["run"]: make_form(run, how) for run in opened}
        _check(opened, made)
        plan = Export(
            format_,
            opened,
            made,
            Selection(
                tuple(statuses),
                reward_min,
                _range("--turns", turns),
                _range("--tokens", tokens),
                tuple(task or ()),
                where,
            ),
            best,
            None if dedup is None else _one_of("--dedup", dedup, SAMENESSES),
            _split(split, seed),
            _one_of("--files", files, KINDS),
            int(shard_mb * 1e6),
            how,
        )
        with _stopped_by_signals(), _progress() as on_progress:
            outcome = plan.write(out, on_progress)
    except BadExpression as error:
        refuse(f"concur: --where: {error}", 2)
    except (forms.NoForm, Occupied) as error:
        refuse(f"concur: {error}", 2)
    except TraceError as error:
        refuse(f"concur: {error}", 1)
    except NothingLeft as nothing:
        _tell(nothing.outcome, opened, console)
        refuse(f"concur: {nothing}", 1)
    _tell(outcome, opened, console)
    console.print(str(out), soft_wrap=True, highlight=False)
    if as_json:
        print(json.dumps({"out": str(out), **outcome.as_json()}))


def _one_of(option: str, given: str, known: Sequence[_Word]) -> _Word:
    found = next((word for word in known if word == given), None)
    if found is None:
        refuse(f"concur: {option} {given}: there is no such thing; {one_of(given, known)}", 2)
    return found


def _range(option: str, text: str | None) -> Range | None:
    try:
        return None if text is None else read_range(text)
    except ValueError as error:
        refuse(f"concur: {option} {text}: {error}", 2)


def _split(text: str | None, seed: int) -> Split:
    try:
        return Split(seed=seed) if text is None else Split(read_shares(text), seed)
    except ValueError as error:
        refuse(f"concur: --split {text}: {error}", 2)


def _open(paths: Sequence[Path]) -> list[Run]:
    """The runs, no two of one name."""
    try:
        runs = [Run(path) for path in paths]
    except TraceError as error:
        refuse(f"concur: {error}", 2)
    [(name, count)] = Counter(run.manifest["run"] for run in runs).most_common(1)
    if count > 1:
        refuse(f"concur: {name} is given {count} times; give each run once", 2)
    return runs


def _check(runs: Sequence[Run], made: Mapping[str, Form]) -> None:
    """Refuse runs whose records do not belong together."""
    first, *others = runs
    for run in others:
        names = f"{first.manifest['run']} and {run.manifest['run']}"
        schema = made[run.manifest["run"]].schema
        if schema != made[first.manifest["run"]].schema:
            refuse(f"concur: {names} have other columns in this format; export them one by one", 2)
        tokenizers = {each.manifest.get("identity", {}).get("model.tokenizer") for each in (first, run)}
        if "input_ids" in schema.names and len(tokenizers) > 1:
            refuse(f"concur: {names} have other tokenizers, whose ids do not mix; export them one by one", 2)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Within, Ctrl-C and SIGTERM end the command, and what is half written goes."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        refuse("concur: stopped: nothing is exported", 128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Bars while it goes on, on a terminal."""
    columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done)

        yield show


def _tell(outcome: Outcome, runs: Sequence[Run], console: Console) -> None:
    """What was kept and what was dropped, in a table, and a line for each run that goes on or was broken off."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("ended", f"{outcome.ended:,}")
    for why, count in outcome.dropped.items():
        table.add_row(Text(f"  dropped: {why}"), f"{count:,}")
    table.add_row("kept", f"{outcome.kept:,}")
    for what, count in outcome.report.items():
        table.add_row(Text(f"  {what}"), f"{count:,}")
    console.print(table, highlight=False)
    for name, volume in outcome.splits.items():
        console.print(f"{name}: {_in_words(volume)}", soft_wrap=True, highlight=False)
    for run in runs:
        name, status = run.manifest["run"], run.manifest["status"]
        if left := outcome.not_ended[name]:
            console.print(f"{name} is {status}: {left:,} agents have not ended", soft_wrap=True, highlight=False)


def _in_words(volume: Volume) -> str:
    return (
        f"{volume.trajectories:,} trajectories, {volume.records:,} records, {amount(volume.turns)} turns, "
        f"{amount(volume.tokens)} tokens, {amount(volume.sampled_tokens)} sampled, {volume.size_bytes / 1e6:,.1f} MB"
    )
