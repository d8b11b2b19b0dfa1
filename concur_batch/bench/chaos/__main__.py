"""`make chaos`: runs that faults befall, each compared with one that nothing befell. Exit code 1: one was not equal.

What a seed draws is in plan.py, what is run in work.py. Outcomes are kept beside the seed's other files, and runs that
have one are not run again: an interrupted `make chaos` goes on. The directory of a run that was not equal stays.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console

from concur_batch.bench.chaos.disk import can_be_full
from concur_batch.bench.chaos.outcome import Outcome, outcome_of, table_of
from concur_batch.bench.chaos.plan import KINDS, Plan, draw
from concur_batch.bench.chaos.story import Story, run_undisturbed
from concur_batch.bench.chaos.work import write_work

_RUNS = Path(__file__).parents[3] / "runs" / "chaos"


def disturb(plans: Sequence[tuple[int, Plan]], directory: Path, workers: int, console: Console) -> list[Outcome]:
    """Run them all, so many at a time, with a line for each; `plans` are with the runs' numbers. In `directory` there
    may be outcomes of some of them already."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "outcomes.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    outcomes = {outcome.number: outcome for outcome in map(outcome_of, lines)}
    left = [(number, plan) for number, plan in plans if number not in outcomes]
    for name in ("undisturbed", *(f"{number:03}" for number, _ in left)):
        shutil.rmtree(directory / name, ignore_errors=True)  # where it was interrupted
    # A shell's background job ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    workload = write_work(directory / "work")
    undisturbed = run_undisturbed(workload, directory / "undisturbed")
    with ThreadPoolExecutor(workers) as pool, path.open("a") as file:
        stories = [Story(number, plan, workload, directory / f"{number:03}", undisturbed) for number, plan in left]
        for done in as_completed([pool.submit(story.tell) for story in stories]):
            outcome = done.result()
            outcomes[outcome.number] = outcome
            print(outcome.to_json(), file=file, flush=True)
            console.print(outcome.line(), soft_wrap=True, highlight=False, markup=False)
    return [outcomes[number] for number, _ in plans]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m concur_batch.bench.chaos",
        description="Runs that faults befall, compared with one that nothing befell.",
    )
    parser.add_argument("--runs", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="from which all faults are drawn (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (%(default)s)")
    given = parser.parse_args()
    console = Console(width=160)
    kinds = KINDS
    if not can_be_full():
        kinds = tuple(kind for kind in KINDS if kind != "disk full")
        console.print("no disk is full: a small one cannot be mounted here, which takes root")
    began = time.monotonic()
    plans = [(number, draw(given.seed, number, kinds)) for number in range(given.runs)]
    outcomes = disturb(plans, _RUNS / f"seed-{given.seed}", given.workers, console)
    console.print(table_of(outcomes))
    wrong = [outcome.number for outcome in outcomes if not outcome.good]
    seconds = time.monotonic() - began
    console.print(f"{len(outcomes)} runs, seed {given.seed}, {seconds:.0f} s; not equal: {wrong or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
