"""What a run would do, and what it did, as tables for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from concur_batch.report.text import amount, counted, duration, share


def plan_table(plan: Mapping[str, Any]) -> Group:
    """A dry run's plan (see workload.dryrun): the batch, the first prompt, and every setting with its value."""
    batch = Table(title=f"{plan['workload']}: would run", title_justify="left", show_header=False)
    batch.add_column(style="bold cyan")
    batch.add_column()
    if plan["replayed_turns"]:
        batch.add_row("agents", f"{plan['agents']}, replayed: {plan['replayed_turns']} turns")
    else:
        batch.add_row("agents", f"{plan['agents']}: {plan['tasks']} tasks x {plan['samples']} samples")
        batch.add_row("checks", ", ".join(f"{name} {count}" for name, count in plan["tasks_by_check"].items()))
        batch.add_row("tools", ", ".join(plan["tools"]))
        batch.add_row("format", plan["format"])
    batch.add_row("engine", plan["engine"])
    batch.add_row("policy", plan["policy"])
    tokens = plan["first_prompt_tokens"]
    batch.add_row("first prompt", f"{tokens} tokens" if tokens is not None else "")
    settings = Table(title="every setting", title_justify="left", show_header=False)
    settings.add_column(style="cyan", overflow="fold")
    settings.add_column(overflow="fold")
    for key, value in plan["settings"].items():
        settings.add_row(key, Text("" if value is None else json.dumps(value, ensure_ascii=False)))
    return Group(batch, Panel(Text(plan["first_prompt"]), title="first prompt", title_align="left"), settings)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """A summary (see report.summary) as a person reads it."""
    table = Table(title=f"{summary['run']}: {summary['status']}", title_justify="left", show_header=False)
    table.add_column(style="bold cyan")
    table.add_column()
    failures = ", ".join(f"{count} {name}" for name, count in sorted(summary["failures"].items()))
    ended = f"{summary['finished']} finished, {summary['limit']} at a limit, {summary['failed']} failed"
    ended += f" ({failures})" if failures else ""
    for name in ("oversized", "cancelled"):
        ended += f", {summary[name]} {name}" if summary[name] else ""
    ended += f", {summary['unfinished']} unfinished" if summary["unfinished"] else ""
    table.add_row("agents", f"{summary['agents']}: {ended}")
    if summary["reward_mean"] is not None:
        table.add_row("reward", f"mean {summary['reward_mean']:.3f} over {summary['rewarded']}")
    table.add_row("time", f"{duration(summary['seconds'])}, policy {summary['policy']}")
    if summary["simulated"]:
        table.add_row("engine", "simulated, and so are times and cache figures")
    table.add_row(
        "work",
        f"{amount(summary['turns'])} turns (median {summary['turns_median'] or 0:g} an agent), "
        f"{amount(summary['tool_calls'])} tool calls, {summary['tool_seconds']:.0f} tool seconds",
    )
    table.add_row(
        "tokens",
        f"{amount(summary['input_tokens'])} in, {amount(summary['output_tokens'])} out "
        f"({amount(summary['output_tokens_per_second'] or 0)}/s)",
    )
    host = f", from the host {share(summary['host_hit_rate'])}" if summary["cached_host_tokens"] else ""
    evicted = summary["evicted_tokens"]
    unknown = "not told" if summary["cached_device_tokens"] is None else "–"
    hit_rate, recomputed = (share(summary[name], unknown) for name in ("hit_rate", "recomputed_share"))
    table.add_row(
        "cache",
        f"hit rate {hit_rate}{host}, recomputed {recomputed} of prefill, "
        + ("evictions not told" if evicted is None else f"{amount(evicted)} tokens evicted"),
    )
    pools = f"; over {summary['pools']} pools" if summary["pools"] > 1 else ""
    if summary["window_max"] is not None:
        table.add_row(
            "window",
            f"{summary['window_min']} to {summary['window_max']}, mean {summary['window_mean']:g}; "
            f"{summary['window_increases']} increases, {summary['window_cuts']} cuts{pools}",
        )
    if summary["footprint_share_max"] is not None:
        mean, most = summary["footprint_share_mean"], summary["footprint_share_max"]
        table.add_row("window", f"tokens inside: mean {mean:.2f}, at most {most:.2f} of the room{pools}")
    table.add_row("pauses", _pauses(summary))
    phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in summary["phase_seconds"].items())
    table.add_row("phases", phases or "–")
    return table


def _pauses(summary: Mapping[str, Any]) -> str:
    even = f"Gini of waiting {summary['wait_gini']:.2f}"
    if not summary["pauses"]:
        return f"none; {even}"
    mean, most = summary["pauses_mean"], summary["pauses_max"]
    each = "" if mean is None else f" ({mean:g} an agent, at most {most})"
    return (
        f"{amount(summary['pauses'])} in {counted(summary['pausing_periods'], 'period')}{each}, "
        f"the longest {summary['longest_pause_seconds']:.1f} s; {even}"
    )
