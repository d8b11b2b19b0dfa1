"""The closing table of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from concur_batch.report.text import amount, duration, share


def summary_table(summary: Mapping[str, Any]) -> Table:
    """A summary (see report.summary) as a person reads it."""
    simulated = "   (times and cache figures are of a simulated engine)" if summary["simulated"] else ""
    table = Table(title=f"{summary['run']}: {summary['status']}{simulated}", title_justify="left", show_header=False)
    table.add_column(style="bold cyan")
    table.add_column()
    failures = ", ".join(f"{count} {name}" for name, count in sorted(summary["failures"].items()))
    ended = f"{summary['finished']} finished, {summary['limit']} at a limit, {summary['failed']} failed"
    ended += f" ({failures})" if failures else ""
    ended += f", {summary['unfinished']} unfinished" if summary["unfinished"] else ""
    table.add_row("agents", f"{summary['agents']}: {ended}")
    if summary["reward_mean"] is not None:
        table.add_row("reward", f"mean {summary['reward_mean']:.3f} over {summary['rewarded']}")
    table.add_row("time", f"{duration(summary['seconds'])}, policy {summary['policy']}")
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
    table.add_row(
        "cache",
        f"hit rate {share(summary['hit_rate'])}{host}, recomputed {share(summary['recomputed_share'])} of prefill, "
        f"{amount(summary['evicted_tokens'])} tokens evicted",
    )
    if summary["window_max"] is not None:
        table.add_row(
            "window",
            f"{summary['window_min']} to {summary['window_max']}, mean {summary['window_mean']:g}; "
            f"{summary['window_increases']} increases, {summary['window_cuts']} cuts, {summary['pauses']} pauses",
        )
    phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in summary["phase_seconds"].items())
    table.add_row("phases", phases or "–")
    table.add_row("run", summary["run_dir"])
    return table
