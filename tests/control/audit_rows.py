"""Control rows with healthy columns, and what the audit finds in rows."""

from __future__ import annotations

from typing import Any

from concur_batch.control.audit import audit
from concur_batch.control.finding import Finding
from concur_batch.workload.schema import AgentCap, Concur, NoControl, RequestCap, Steady, TokenWindow

Rows = list[dict[str, Any]]

CAP = {"cap": 40}
SETTINGS: dict[str, dict[str, Any]] = {
    "none": NoControl(policy="none").model_dump(),
    "request_cap": RequestCap(policy="request_cap", **CAP).model_dump(),
    "agent_cap": AgentCap(policy="agent_cap", **CAP).model_dump(),
    "concur": Concur(policy="concur").model_dump(),
    "steady": Steady(policy="steady").model_dump(),
    "token_window": TokenWindow(policy="token_window").model_dump(),
}
AGENTS: Rows = [{"agent_id": f"a{number}", "paused_seconds": 0.0, "pauses": 0} for number in range(100)]
# A full window of a pool that is well used.
HEALTHY: dict[str, Any] = {
    "window_tokens": None, "pool_share": None, "intake_tokens": None, "hold_seconds": None, "footprint_tokens": 70_000,
    "idle_tokens": 30_000, "kept_tokens": 4_000, "lost_tokens": 20,
    "pool": "r0", "policy": "concur", "window_before": 40, "window_after": 40, "branch": "hold", "reason": "",
    "changes": None, "phase": "middle", "pool_state": "open", "usage": 0.4, "hit_rate": 0.8, "raw_usage": 0.4,
    "raw_hit_rate": 0.8, "occupancy": 0.95, "stale": False, "estimated": False, "restarted": False,
    "sample_age_seconds": 0.0, "pool_tokens": 100_000, "locked_tokens": 40_000, "evictable_tokens": 55_000,
    "lookup_tokens": 5_000, "device_hit_tokens": 4_000,
    "host_hit_tokens": 0, "storage_hit_tokens": 0, "computed_tokens": 1_000,
    "decoded_tokens": 300, "evicted_tokens": 500, "retractions": 0, "offloaded_tokens": 0, "reloaded_tokens": 0,
    "offloaded_bytes": 0, "reloaded_bytes": 0, "reload_seconds": 0.0, "running_requests": 20, "waiting_requests": 0,
    "request_input_tokens": 5_000, "request_device_hit_tokens": 4_000, "recomputed_tokens": 20, "drift_hit_rate": 0.0,
    "drift_lookups": 1.0, "in_flight_requests": 20, "pending": 10, "active": 20, "tool_wait": 20, "paused": 0,
    "queued": 0, "finished": 0, "places_held": 40, "marked": 0, "adrift": 0, "history_tokens": 90_000,
    "admitted_in_period": 0, "resumed_in_period": 0, "paused_in_period": 0, "completed_in_period": 0,
    "forced_in_period": 0,
}  # fmt: skip


# The same of a pool whose window bounds tokens.
ROOM: dict[str, Any] = {
    "policy": "token_window", "window_before": None, "window_after": None, "window_tokens": 90_000, "pool_share": 1.0,
    "hold_seconds": 30.0, "footprint_tokens": 81_000,
}  # fmt: skip


def bounds(policy: str) -> dict[str, Any]:
    """Of a healthy window under the policy, what differs from the law's."""
    return ROOM if policy == "token_window" else {}


def rows(count: int, **changes: Any) -> Rows:
    """So many healthy periods, but for these columns."""
    return [{**HEALTHY, **changes} for _ in range(count)]


def cut(before: int, after: int, **changes: Any) -> Rows:
    """A cut that marks whoever is too many."""
    columns = {"window_before": before, "window_after": after, "marked": before - after, "places_held": before}
    return rows(1, branch="cut", **{**columns, **changes})


def found(*parts: Rows, policy: str = "concur", agents: Rows = AGENTS, **settings: Any) -> list[Finding]:
    """The findings of these rows, a second apart; rows of several pools side by side share a period."""
    control: Rows = []
    periods: dict[str, int] = {}
    for row in (row for part in parts for row in part):
        period = periods[row["pool"]] = periods.get(row["pool"], -1) + 1
        control.append({**row, "period": period, "seconds": 1.0 + period})
    return audit(control, agents, {**SETTINGS[policy], **settings})


def names(*parts: Rows, **settings: Any) -> list[str]:
    return [finding.name for finding in found(*parts, **settings)]


def only(*parts: Rows, **settings: Any) -> Finding:
    (finding,) = found(*parts, **settings)
    return finding
