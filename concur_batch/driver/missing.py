"""What a person is told at a run's start of the signals that its engine lacks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from concur_batch.engine.protocol import EngineInfo
from concur_batch.workload.schema import AnyControl, Concur, TokenWindow


def missing_notes(infos: Sequence[EngineInfo], control: AnyControl) -> list[str]:
    """A line for each signal that some server does not tell, with what becomes of control without it."""
    missing = {name for info in infos for name in info.missing_signals}
    sized = all(tokens is not None for info in infos for tokens in info.pool_tokens_by_rank)
    effects = {}
    if "KV usage" in missing and sized:
        effects["KV usage"] = "U is estimated as the histories of the agents that generate, over the pool's size"
        if "cached tokens" not in missing:
            effects["hit rate"] = "H is that of the requests' own cached tokens"
        elif isinstance(control, Concur):
            effects["hit rate"] = "the window grows by U and is never cut; set control.max_window, or a cap"
    elif "KV usage" in missing and isinstance(control, Concur | TokenWindow):
        stays = f"the window stays at {control.initial_window} (control.initial_window)"
        effects["KV usage"] = f"{stays}: set engine.pool_tokens, or a cap (control.policy: agent_cap)"
    return [
        f"the engine does not tell its {name}" + (f": {effects[name]}" if name in effects else "")
        for name in sorted(missing)
    ]
