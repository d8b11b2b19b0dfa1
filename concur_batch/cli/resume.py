"""`concur resume`: a run that was interrupted, or killed, goes on."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from concur_batch.agent.spec import FailureClass
from concur_batch.agent.tokenizer import TokenizerError, load_tokenizer
from concur_batch.cli.drive import Drive, check_sandbox, drive, end_dead_runs, holding, told
from concur_batch.cli.refusal import nearest, refuse
from concur_batch.control.orders import ORDERS, read_orders
from concur_batch.driver.cluster import Cluster, ClusterError
from concur_batch.driver.directory import recover_journals
from concur_batch.driver.driver import Before
from concur_batch.driver.past import Past, account_of, calls_cut_off, going_on, life_of, read_past, seconds_of
from concur_batch.driver.plan import Batch, make_batch
from concur_batch.report.text import counted
from concur_batch.trace.ending import finish
from concur_batch.trace.files import TraceError, is_locked
from concur_batch.trace.intents import Row, intent_files, read_intents
from concur_batch.trace.manifest import read_manifest, update_manifest, write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.tables import tables_of
from concur_batch.trace.withdrawal import withdraw
from concur_batch.trace.writer import recover
from concur_batch.workload.errors import InputError
from concur_batch.workload.fingerprint import differences
from concur_batch.workload.loading import load_again
from tools_env.sandbox import forget_all, sweep

_CLASSES: tuple[str, ...] = get_args(FailureClass)
# Whatever befell the machines says nothing of an agent: it is never its result.
_ALWAYS_AGAIN = frozenset(("infrastructure",))
# Recorders of a dead run end with its Ray, on all nodes, within seconds.
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the command line says."""

    run: Path
    settings: Sequence[str]
    force: bool
    again: frozenset[str]  # the failure classes to run again


def resume(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting that decides no result: --set engine.url=…", metavar="KEY=VALUE"),
    ] = None,
    force: Annotated[bool, typer.Option(help="Go on though what decides the results has changed.")] = False,
    retry: Annotated[
        str | None,
        typer.Option(
            help=f"Also run agents again whose failure is of these classes: {', '.join(_CLASSES)}.", metavar="CLASS,…"
        ),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Join this Ray cluster instead of starting one. [env: RAY_ADDRESS]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as the last line, as JSON.")] = False,
) -> None:
    """Let a run go on: agents that have ended stay, those under way continue behind their last turn, others begin."""
    console = Console(stderr=as_json)
    wanted = _Wanted(run.resolve(), set_ or [], force, _ALWAYS_AGAIN | _classes(retry))
    try:
        manifest = read_manifest(run)
        with holding(wanted.run) as held:
            if not held:
                refuse(f"concur: {run} is running: `concur ps {run}` shows it", 2)
            code = _resume(wanted, manifest, ray_address, console, as_json)
    except InputError as error:
        refuse(str(error), 2)
    except (TraceError, TokenizerError) as error:
        refuse(f"concur: {error}", 2)
    sys.exit(code)


def _resume(wanted: _Wanted, manifest: dict[str, Any], ray_address: str | None, console: Console, as_json: bool) -> int:
    run_dir, orders = wanted.run, read_orders(wanted.run / ORDERS)
    loaded = load_again(run_dir, manifest, None if orders is None else orders.control, wanted.settings)
    batch = make_batch(loaded, load_tokenizer(run_dir / "model"))
    now = told(loaded, batch)
    changed = differences(manifest.get("identity", {}), now["identity"])
    if changed and not wanted.force:
        lines = [f"concur: {run_dir.name}: what decides its results has changed since it began:", *changed]
        refuse("\n".join([*lines, "put it back, or give --force: agents that have ended keep their results"]), 2)
    check_sandbox(loaded)
    end_dead_runs(console)
    sweep(run_dir / "workspaces")
    intents = _recover(run_dir, manifest, ray_address)
    run = Run(run_dir)
    past = read_past(run)
    cut_off = calls_cut_off(run, past, intents)
    if again := past.failed(wanted.again):
        withdraw(tables_of(run_dir), again)
        past = read_past(run)
    left = going_on(batch.agents, past, loaded.workload.agent.attempts)
    if not left:
        return _finished(run_dir, past, batch, console)
    under_way = sum(agent.goes_on for agent in left)
    console.print(
        f"{run_dir.name}: {len(batch.agents) - len(left)} of {len(batch.agents)} agents have ended, {under_way} go on "
        f"behind their last turn, {len(left) - under_way} begin"
    )
    if cut_off:
        were = f"{counted(cut_off, 'call')} {'was' if cut_off == 1 else 'were'}"
        console.print(f"{were} cut off; their workspaces are put back to the last turn on record")
    seconds = seconds_of(run)
    began = datetime.strptime(manifest["started_at"], "%Y-%m-%dT%H:%M:%S%z") if "started_at" in manifest else None
    before = Before(
        [agent.agent_id for agent in batch.agents],
        time.time() if began is None else began.timestamp(),
        seconds,
        account_of(run, batch.agents, left),
    )
    resumed = {
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "after_seconds": round(seconds, 3),
        "agents": len(left),
        "calls_cut_off": cut_off,
        "retry": sorted(wanted.again),
        "changed": changed,
    }
    manifest = {**manifest, **now, "resumed": [*manifest.get("resumed", []), resumed]}
    write_manifest(run_dir, manifest)
    (run_dir / ORDERS).unlink(missing_ok=True)  # its settings are the workload's now, and a paused run goes on
    return drive(Drive(loaded, left, run_dir, manifest, before), ray_address, console, as_json)


def _recover(run_dir: Path, manifest: Mapping[str, Any], ray_address: str | None) -> list[Row]:
    """Bring what the dead run's recorders have left into the tables, once they and the hosts are dead; the intents of
    the life that has ended. Raises TraceError."""
    life = life_of(manifest)
    intents: list[Row] = []
    if manifest.get("tables") is not None and (ray_address or os.environ.get("RAY_ADDRESS")):
        intents = asyncio.run(_recover_elsewhere(run_dir, manifest, ray_address))
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while recover(run_dir).live_segments or any(map(is_locked, intent_files(run_dir, life))):
        if time.monotonic() > deadline:
            raise TraceError(f"{run_dir} is still being written to: on some node, a process of its dead run lives")
        time.sleep(0.5)
    return intents + read_intents(run_dir, life)


async def _recover_elsewhere(run_dir: Path, manifest: Mapping[str, Any], ray_address: str | None) -> list[Row]:
    """The same on the other nodes, which need not share a disk with this one."""
    try:
        cluster = Cluster(ray_address)
    except ClusterError as error:
        refuse(f"concur: {error}", 1)
    try:
        others, names = cluster.nodes()[1:], list(manifest.get("journals") or ())
        await cluster.on_nodes(others, recover_journals, run_dir, names, manifest["tables"])
        found = await cluster.on_nodes(others, read_intents, run_dir, life_of(manifest))
        return [row for of_node in found for row in of_node]
    finally:
        cluster.close()


def _finished(run_dir: Path, past: Past, batch: Batch, console: Console) -> int:
    """Nobody is left: only the end may still have to be put on record."""
    unmerged = finish(run_dir)
    forget_all(run_dir / "workspaces")
    update_manifest(run_dir, status="finished", live=None)
    failures = sorted({str(failure) for _, failure in past.final.values() if failure is not None})
    line = f"{run_dir.name} has finished: all {len(batch.agents)} agents have ended"
    if failures:
        line += f"; with --retry {','.join(failures)} those that did not finish run again"
    console.print(line if unmerged is None else f"{line}; its parts are not merged: {unmerged}", soft_wrap=True)
    return 0


def _classes(retry: str | None) -> frozenset[str]:
    names = [name.strip() for name in (retry or "").split(",") if name.strip()]
    for name in names:
        if name not in _CLASSES:
            refuse(f"concur: --retry {name}: no such class{nearest(name, _CLASSES)}", 2)
    return frozenset(names)
