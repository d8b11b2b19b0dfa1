"""Several pools' last control rows as one line for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from concur_batch.report.phases import leading_phase


def overview(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """U, H and occupancy over all pools together, the most telling phase, and whether any sample is stale or
    an estimate.

    Figures that some pool does not tell are those of the others; None where none tells.
    """
    if not rows:
        return {}
    return {
        "usage": _quotient(rows, "usage", "pool_tokens"),
        "hit_rate": _quotient(rows, "hit_rate", "lookup_tokens"),
        "occupancy": _quotient(rows, "occupancy", "pool_tokens"),
        "phase": leading_phase({row["phase"] for row in rows}).value,
        "stale": any(row["stale"] for row in rows),
        "estimated": any(row["estimated"] for row in rows),
    }


def _quotient(rows: Sequence[Mapping[str, Any]], share: str, weight: str) -> float | None:
    """The mean of a share over the pools, weighted; one pool's is its own, whatever it weighs."""
    known = [row for row in rows if row[share] is not None]
    if len(known) == 1:
        return float(known[0][share])
    total = sum(row[weight] or 0 for row in known)
    return sum(row[share] * (row[weight] or 0) for row in known) / total if total else None
