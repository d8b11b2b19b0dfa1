"""One run from its first command to its end, whatever befalls it, and what is wrong with it then."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from concur_batch.bench.chaos.command import Command, Progress, progress_of, run_below
from concur_batch.bench.chaos.comparison import Differences, Ids, Record, TurnKey, compare
from concur_batch.bench.chaos.disk import small_disk
from concur_batch.bench.chaos.family import survivors
from concur_batch.bench.chaos.outcome import Outcome
from concur_batch.bench.chaos.plan import Life, Plan
from concur_batch.bench.chaos.record import litter, read_record, read_turns, undeclared
from concur_batch.bench.chaos.stderr import has_traceback
from concur_batch.bench.chaos.strikes import Striker
from concur_batch.report.summary import summarize
from concur_batch.trace.reading import Run

# Longer than anything that a run waits for: a signal's grace, an engine's restarts, a lost node.
_PATIENCE_SECONDS = 300.0
_MOST_COMMANDS = 15
# Ray's processes notice within seconds that their driver is gone.
_ORPHAN_SECONDS = 30.0
_VICTIM_SECONDS = 0.05
_SUMS = ("agents", "finished", "failed", "unfinished", "reward_mean", "turns", "turns_median", "tool_calls",
         "input_tokens", "output_tokens", "malformed_turns")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The run that nothing befell: what it has left, and what its summary says of its work."""

    record: Record
    sums: dict[str, Any]

    @property
    def whole(self) -> Progress:
        """How far a run is in the end."""
        return Progress(len(self.record.turns), len(self.record.ends))


def run_undisturbed(workload: Path, directory: Path) -> Undisturbed:
    """Raises SystemExit where that does not end well."""
    directory.mkdir(parents=True)
    command = Command(_first(workload, directory, "plain"), directory, Progress(0, 0), str(directory), directory / "0")
    code = command.end(_PATIENCE_SECONDS)
    run_dir = run_below(directory)
    if code != 0 or run_dir is None:
        raise SystemExit(f"the run that nothing befalls: exit code {code}; see {directory / '0.err'}")
    record = read_record(run_dir)
    if record.doubled or len(record.workspaces) != len(record.ends) or litter(run_dir):
        raise SystemExit(f"the run that nothing befalls is not whole; see {run_dir}")
    return Undisturbed(record, _sums(run_dir))


class Story:
    """`directory` is made for it, and removed again where nothing is wrong in the end."""

    def __init__(self, number: int, plan: Plan, workload: Path, directory: Path, undisturbed: Undisturbed) -> None:
        self._number = number
        self._plan = plan
        self._workload = workload
        self._directory = directory
        self._undisturbed = undisturbed
        self._committed: dict[TurnKey, Ids] = {}
        self._seen: set[psutil.Process] = set()
        self._struck: list[str] = []
        self._told: list[str] = []
        self._missed: list[str] = []
        self._exit_codes: list[int] = []
        self._on_record: list[int] = []
        self._problems: list[str] = []

    def tell(self) -> Outcome:
        """Run it to its end."""
        began = time.monotonic()
        self._directory.mkdir(parents=True)
        with ExitStack() as stack:
            self._disk = None
            if any(fault.kind == "disk full" for life in self._plan for fault in life):
                self._disk = stack.enter_context(small_disk(self._directory / "disk"))
            self._output = (self._directory if self._disk is None else self._disk.path) / "runs"
            while not self._finished():
                if len(self._exit_codes) == _MOST_COMMANDS:
                    self._problems.append(f"not finished after {_MOST_COMMANDS} commands")
                    break
                self._live()
            differences, orphans = self._compare(), self._orphans()
            outcome = Outcome(
                number=self._number,
                struck=tuple(self._struck),
                told=tuple(self._told),
                missed=tuple(self._missed),
                exit_codes=tuple(self._exit_codes),
                on_record=tuple(self._on_record),
                seconds=round(time.monotonic() - began, 1),
                differences=differences,
                orphans=orphans,
                problems=tuple(self._problems),
            )
            if self._disk is not None and not outcome.good:
                shutil.copytree(self._output, self._directory / "runs", symlinks=True)
        if outcome.good:
            shutil.rmtree(self._directory)
        return outcome

    def _live(self) -> None:
        """One command, from its start to its end."""
        number = len(self._exit_codes)
        run_dir = run_below(self._output)
        arguments = (
            _first(self._workload, self._output, f"chaos{self._number}")
            if run_dir is None
            else ["resume", str(run_dir), "--json"]
        )
        log = self._directory / str(number)
        command = Command(arguments, self._output, self._undisturbed.whole, str(self._directory), log)
        striker = Striker(command.process, self._disk)
        self._suffer(command, striker, self._plan[number] if number < len(self._plan) else ())
        code = command.end(_PATIENCE_SECONDS)
        if code is None:
            self._problems.append(f"command {number} had to be killed after {_PATIENCE_SECONDS:g} s")
        self._seen |= striker.seen
        self._exit_codes.append(-9 if code is None else code)
        if has_traceback(log.with_suffix(".err").read_text(errors="replace")):
            self._problems.append(f"command {number} ended with a traceback")
        if self._disk is not None:  # a full disk may take back what is seen before it is durable
            survivors(str(self._directory), self._name(), (), _ORPHAN_SECONDS)
        self._note_turns()

    def _suffer(self, command: Command, striker: Striker, faults: Life) -> None:
        for fault in faults:
            told = f"{fault.kind}, {fault.moment}"
            struck = command.until(fault.moment) and command.pause(fault.jitter_seconds)
            turns = progress_of(self._output).turns
            while struck and not striker.strike(fault):  # whom it is to befall may not be there yet
                struck = command.pause(_VICTIM_SECONDS)
            if not struck:
                self._missed.append(told)
                continue
            self._struck.append(fault.kind)
            self._told.append(f"{told} ({turns})")

    def _note_turns(self) -> None:
        run_dir = run_below(self._output)
        turns = {} if run_dir is None else read_turns(run_dir)
        self._committed = turns | self._committed  # as they were seen first
        self._on_record.append(len(turns))
        if run_dir is not None:
            calls = undeclared(run_dir, self._undisturbed.whole.ended)
            self._problems += [f"no intent before the call: {call}" for call in calls]

    def _finished(self) -> bool:
        return bool(self._exit_codes) and self._exit_codes[-1] == 0

    def _name(self) -> str:
        run_dir = run_below(self._output)
        return "no run" if run_dir is None else run_dir.name

    def _compare(self) -> Differences:
        run_dir = run_below(self._output)
        if run_dir is None or not self._finished():
            return Differences()
        self._problems += [f"left in its directory: {left}" for left in litter(run_dir)]
        status = Run(run_dir).manifest["status"]
        if status != "finished":
            self._problems.append(f"its status is {status}")
        record = read_record(run_dir)
        attempts_failed = len(record.turns) > len(self._undisturbed.record.turns)  # their turns are summed too
        if not attempts_failed and (sums := _sums(run_dir)) != self._undisturbed.sums:
            self._problems.append(f"its summary says {sums}")
        return compare(self._undisturbed.record, record, self._committed)

    def _orphans(self) -> int:
        left = survivors(str(self._directory), self._name(), self._seen, _ORPHAN_SECONDS)
        self._problems += [f"lives on: {_line(process)}" for process in left]
        _kill(left)
        return len(left)


def _first(workload: Path, output: Path, name: str) -> list[str]:
    return ["run", str(workload), "--set", f"output={output}", "--set", f"name={name}", "--json"]


def _sums(run_dir: Path) -> dict[str, Any]:
    summary = summarize(Run(run_dir))
    return {name: summary[name] for name in _SUMS}


def _line(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:80]}"
    except psutil.Error:
        return str(process.pid)


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
