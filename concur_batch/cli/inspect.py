"""`concur inspect`: a run's agents, one agent's whole trajectory, or what is found in all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc
import typer

from concur_batch.agent.encoding import TokenizerError
from concur_batch.agent.vocabulary import Vocabulary
from concur_batch.cli.paging import page
from concur_batch.cli.refusal import nearest, refuse
from concur_batch.report.agents import ORDERS, STATUSES, agents, agents_lines
from concur_batch.report.pattern import Pattern, PatternError
from concur_batch.report.search import findings, findings_lines
from concur_batch.report.trajectory import Reading, attempts_of, trajectory
from concur_batch.report.trajectory_view import trajectory_lines
from concur_batch.trace.files import TraceError
from concur_batch.trace.intents import Row, read_intents, unrecorded
from concur_batch.trace.reading import Run
from concur_batch.workload.explain import one_of

_LISTED = ("agent_id", "attempt", "status", "end_reason", "error", "reward", "turns", "tool_calls", "input_tokens",
           "output_tokens", "context_tokens", "started_seconds", "ended_seconds")  # fmt: skip
_UNDER_WAY = ("agent_id", "attempt", "turn", "input_tokens", "output_tokens", "context_tokens", "started_seconds",
              "ended_seconds")  # fmt: skip
_NAMED = 5  # agents that an ambiguous name is answered with


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the command line says of the agent and its turns."""

    agent: str
    attempt: int | None
    turns: slice | None
    pattern: Pattern | None
    full: bool
    ids: bool


def inspect(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    agent: Annotated[
        str | None, typer.Argument(help="An agent's id, its task's, or a part that only one has.", show_default=False)
    ] = None,
    status: Annotated[
        str | None, typer.Option(help=f"List the agents of these: {', '.join(STATUSES)}.", metavar="STATUS,…")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="The same as --status failed.")] = False,
    sort: Annotated[str, typer.Option(help=f"Sort the list by {', '.join(ORDERS)}.", metavar="ORDER")] = "interest",
    search: Annotated[
        str | None,
        typer.Option(help="Only turns where this is found; without AGENT, where it is.", metavar="TEXT|/REGEX/"),
    ] = None,
    turn: Annotated[
        str | None, typer.Option(help="Only these turns of AGENT, as Python's slices: 3, -1, 2:5, 8:", metavar="N[:M]")
    ] = None,
    attempt: Annotated[int | None, typer.Option(help="Another attempt of AGENT than the one that counts.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Show the token ids of the turns.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read trajectories: the agents of a run, all that one of them wrote, called and saw, or where a text is found."""
    of_one = {"--turn": turn is not None, "--attempt": attempt is not None, "--ids": ids, "--full": full}
    of_all = {"--status": status is not None, "--failed": failed, "--sort": sort != "interest"}
    for option, given in (of_one if agent is None else of_all).items():
        if given:
            refuse(f"concur: {option} {'needs an AGENT' if agent is None else 'is of the list, without an AGENT'}", 2)
    try:
        pattern = None if search is None else Pattern.of(search)
        found = Run(run)
        if agent is not None:
            _show(found, _Wanted(agent, attempt, _slice(turn), pattern, full, ids), as_json)
            return
        rows, begun = _list(found, _statuses(status, failed), _order(sort))
        if pattern is not None:
            _search(found, pattern, {row["agent_id"] for row in rows}, as_json)
        elif as_json:
            print(json.dumps({"run": found.manifest["run"], "agents": found.manifest["agents"], "listed": rows}))
        else:
            page(agents_lines(found.manifest["run"], found.manifest["agents"], begun, rows))
    except PatternError as error:
        refuse(f"concur: --search: {error}", 2)
    except TraceError as error:
        refuse(f"concur: {error}", 2)


def _show(run: Run, wanted: _Wanted, as_json: bool) -> None:
    """One agent's trajectory."""
    intents = read_intents(run.path)
    name = _resolve(run, wanted.agent, intents)
    of_agent = pc.field("agent_id") == name
    ended, turns, tools = (
        run.table(table, filter=of_agent, few=True).to_pylist() for table in ("agents", "turns", "tools")
    )
    recorded = {(name, row["attempt"], row["turn"]) for row in turns}
    left = unrecorded((row for row in intents if row["agent_id"] == name), recorded)
    known, attempt = attempts_of(ended, (*turns, *left))
    if wanted.attempt is not None and wanted.attempt not in known:
        refuse(f"concur: --attempt {wanted.attempt}: {name} has {', '.join(map(str, known))}", 2)
    attempt = attempt if wanted.attempt is None else wanted.attempt
    reading, notes = _reading(run)
    form = run.manifest["workload"]["agent"]["format"]
    picture = trajectory(ended, turns, tools, attempt, form, reading, left, ids=wanted.ids)
    picture |= {"run": run.manifest["run"], "notes": notes}
    if wanted.turns is not None:
        picture |= {"turns": picture["turns"][wanted.turns], "unrecorded": []}
    if wanted.pattern is not None and as_json:
        of_attempt = [[row for row in rows if row["attempt"] == attempt] for rows in (ended, turns, tools)]
        numbers = {None, *(turn["turn"] for turn in picture["turns"])}
        rows = [row for row in findings(wanted.pattern, form, *of_attempt) if row["turn"] in numbers]
        print(json.dumps({"run": run.manifest["run"], "found": rows}))
    elif as_json:
        print(json.dumps(picture, default=str))
    else:
        page(trajectory_lines(picture, wanted.pattern, full=wanted.full))


def _reading(run: Run) -> tuple[Reading | None, list[str]]:
    """What the run's token ids are read with, or why they are not."""
    try:
        vocabulary = Vocabulary(run.path / "model")
    except TokenizerError as error:
        return None, [f"prompts cannot be read: {error}"]
    return Reading(vocabulary.text, vocabulary.piece), []


def _resolve(run: Run, given: str, intents: Sequence[Row]) -> str:
    """The agent that is meant; of one in its first turn there are intents alone."""
    for table in ("agents", "turns"):
        if run.table(table, ["agent_id"], pc.field("agent_id") == given, few=True).num_rows:
            return given
    tasks: dict[str, str] = {row["agent_id"]: row["task_id"] for row in intents}
    if given in tasks:
        return given
    for table in ("agents", "turns"):
        pairs = run.table(table, ["agent_id", "task_id"]).group_by(["agent_id", "task_id"]).aggregate([])
        tasks |= {row["agent_id"]: row["task_id"] for row in pairs.to_pylist()}
    meant = sorted(name for name, task in tasks.items() if task == given)
    meant = meant or sorted(name for name in tasks if given in name)
    if not meant:
        refuse(f"concur: {given}: no such agent has done anything in {run.path}{nearest(given, list(tasks))}", 2)
    if len(meant) > 1:
        some = ", ".join(meant[:_NAMED]) + (", …" if len(meant) > _NAMED else "")
        refuse(f"concur: {given}: {len(meant)} agents could be meant; give one of {some}", 2)
    return meant[0]


def _list(run: Run, statuses: Sequence[str], order: str) -> tuple[list[dict[str, Any]], int]:
    """The agents of these statuses that have begun, and how many have begun at all."""
    final = run.table("agents", _LISTED, pc.field("final"))
    under_way: list[dict[str, Any]] = []
    if final.num_rows < run.manifest["agents"]:
        others = run.table("turns", _UNDER_WAY, ~pc.field("agent_id").isin(final["agent_id"].combine_chunks()))
        attempts = others.group_by(["agent_id", "attempt"]).aggregate(
            [("turn", "count"), ("input_tokens", "sum"), ("output_tokens", "sum"), ("context_tokens", "max"),
             ("started_seconds", "min"), ("ended_seconds", "max")]
        )  # fmt: skip
        last = {row["agent_id"]: row for row in attempts.sort_by("attempt").to_pylist()}
        under_way = [
            {
                "agent_id": row["agent_id"],
                "attempt": row["attempt"],
                "turns": row["turn_count"],
                "input_tokens": row["input_tokens_sum"],
                "output_tokens": row["output_tokens_sum"],
                "context_tokens": row["context_tokens_max"],
                "started_seconds": row["started_seconds_min"],
                "ended_seconds": row["ended_seconds_max"],
            }
            for row in last.values()
        ]
    rows = agents(final.to_pylist(), under_way, order)
    return [row for row in rows if row["status"] in statuses], len(rows)


def _search(run: Run, pattern: Pattern, names: set[str], as_json: bool) -> None:
    """Where the pattern is found in the texts of these agents."""
    field = pc.field
    turns = run.table("turns", ["agent_id", "attempt", "turn", "action", "output_text"],
                      pattern.filter(field("output_text")))  # fmt: skip
    calls = run.table("tools", ["agent_id", "attempt", "turn", "call", "name", "arguments", "output"],
                      pattern.filter(field("output")) | pattern.filter(_unescaped(field("arguments"))))  # fmt: skip
    ends = run.table("agents", ["agent_id", "attempt", "error", "answer", "verify_output"])
    of_names = [[row for row in table.to_pylist() if row["agent_id"] in names] for table in (ends, turns, calls)]
    rows = findings(pattern, run.manifest["workload"]["agent"]["format"], *of_names)
    if as_json:
        print(json.dumps({"run": run.manifest["run"], "found": rows}))
    else:
        page(findings_lines(rows, pattern))


def _unescaped(arguments: pc.Expression) -> pc.Expression:
    """Near enough what the JSON of a call's arguments says, to find a line of a script in it."""
    kept = "\ue000"  # for a backslash, until the others are gone
    for escaped, plain in (("\\\\", kept), ('\\"', '"'), ("\\n", "\n"), ("\\t", "\t"), (kept, "\\")):
        arguments = pc.replace_substring(arguments, pattern=escaped, replacement=plain)
    return arguments


def _slice(given: str | None) -> slice | None:
    """As Python's; a single number is that turn alone."""
    if given is None:
        return None
    try:
        numbers = [int(part) if part.strip() else None for part in given.split(":")]
        if numbers == [None] or len(numbers) > 2:
            raise ValueError
    except ValueError:
        refuse(f"concur: --turn {given}: give a turn, 3 or -1, or a range of them, 2:5 or 8:", 2)
    if len(numbers) == 2:
        first, last = numbers
        return slice(first, last)
    (number,) = numbers
    assert number is not None, "it would have been refused"
    return slice(number, number + 1 or None)


def _statuses(given: str | None, failed: bool) -> Sequence[str]:
    names = [name.strip() for name in (given or "").split(",") if name.strip()] + (["failed"] if failed else [])
    for name in names:
        if name not in STATUSES:
            refuse(f"concur: --status {name}: no such status; {one_of(name, STATUSES)}", 2)
    return names or STATUSES


def _order(given: str) -> str:
    if given not in ORDERS:
        refuse(f"concur: --sort {given}: no such order; {one_of(given, ORDERS)}", 2)
    return given
