"""The four tables of a run: explicit Arrow schemas, with the unit of every figure in its name.

`*_seconds` of a moment (`started_seconds`, `seconds` of the control table) count from the run's start on a monotonic
clock; the others are durations. `*_tokens` are token counts, `*_bytes` bytes. Nullable figures are those that an
engine may not tell; null means "not told", never zero.
"""

from __future__ import annotations

import pyarrow as pa

IDS = pa.list_(pa.int32())

# The key of every row: one agent is one (task, sample); an attempt starts it anew after an infrastructure failure.
_KEY = [
    pa.field("agent_id", pa.string(), nullable=False),
    pa.field("task_id", pa.string(), nullable=False),
    pa.field("sample", pa.int32(), nullable=False),
    pa.field("attempt", pa.int32(), nullable=False),
]

# Tokens of prompts by what became of them; null where no cached tokens are told.
# input = device + host + storage hits + first + recomputed + rounding.
_TOKENS = [
    pa.field("input_tokens", pa.int64(), nullable=False),
    pa.field("output_tokens", pa.int64(), nullable=False),
    pa.field("cached_device_tokens", pa.int64()),
    pa.field("cached_host_tokens", pa.int64(), nullable=False),
    pa.field("cached_storage_tokens", pa.int64(), nullable=False),
    pa.field("first_tokens", pa.int64()),  # never computed for this agent before
    pa.field("recomputed_tokens", pa.int64()),  # computed before, evicted, computed again
    pa.field("rounding_tokens", pa.int64()),  # computed again since pages are kept whole only
    pa.field("retractions", pa.int64()),
]

AGENTS = pa.schema(
    [
        *_KEY,
        pa.field("final", pa.bool_(), nullable=False),  # exactly one final row per (task, sample)
        pa.field("status", pa.string(), nullable=False),  # finished | limit | oversized | failed | cancelled
        pa.field("end_reason", pa.string(), nullable=False),
        pa.field("failure_class", pa.string()),  # model | tool | infrastructure | limit | cancelled
        pa.field("error", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("prompt", pa.string()),  # the user's text; null where the agent was replayed
        pa.field("answer", pa.string()),
        pa.field("verify_output", pa.string()),
        pa.field("verify_seconds", pa.float64()),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("turns", pa.int32(), nullable=False),
        pa.field("tool_calls", pa.int32(), nullable=False),
        pa.field("malformed_turns", pa.int32(), nullable=False),
        pa.field("pauses", pa.int32(), nullable=False),
        *_TOKENS,
        pa.field("context_tokens", pa.int64(), nullable=False),  # length of the whole history at the end
        pa.field("started_seconds", pa.float64(), nullable=False),  # first asked for admission
        pa.field("admitted_seconds", pa.float64()),  # first admitted
        pa.field("ended_seconds", pa.float64(), nullable=False),
        pa.field("pending_seconds", pa.float64(), nullable=False),
        pa.field("paused_seconds", pa.float64(), nullable=False),
        pa.field("queue_seconds", pa.float64(), nullable=False),  # waited for a permit, request cap only
        pa.field("generation_seconds", pa.float64(), nullable=False),
        pa.field("tool_queue_seconds", pa.float64(), nullable=False),
        pa.field("tool_seconds", pa.float64(), nullable=False),
        pa.field("ended_at", pa.timestamp("us", tz="UTC"), nullable=False),  # wall clock, a label only
        pa.field("host", pa.string(), nullable=False),
        pa.field("replica", pa.string(), nullable=False),
    ]
)

TURNS = pa.schema(
    [
        *_KEY,
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("rid", pa.string(), nullable=False),
        pa.field("replica", pa.string(), nullable=False),
        pa.field("request_attempts", pa.int32(), nullable=False),
        # The history grows by deltas: input_delta_ids (template and observation tokens) and then output_ids.
        pa.field("input_delta_ids", IDS, nullable=False),
        pa.field("output_ids", IDS, nullable=False),
        pa.field("output_logprobs", pa.list_(pa.float32())),  # of the engine's own tokens where ids are estimated
        pa.field("ids_estimated", pa.bool_(), nullable=False),  # the engine took messages, ids are our tokenizer's
        pa.field("output_text", pa.string(), nullable=False),
        pa.field("output_message", pa.string()),  # JSON, as the engine gave it; null where the engine takes ids
        pa.field("finish_reason", pa.string(), nullable=False),  # stop | length | abort
        pa.field("action", pa.string(), nullable=False),  # calls | answer | malformed | truncated
        pa.field("tools_mark", pa.string()),  # what brings the agent's tools back to how this turn left them
        *_TOKENS,
        pa.field("context_tokens", pa.int64(), nullable=False),  # KV held by the agent after this turn
        pa.field("started_seconds", pa.float64(), nullable=False),  # wanted to generate
        pa.field("generation_started_seconds", pa.float64(), nullable=False),
        pa.field("ended_seconds", pa.float64(), nullable=False),  # observation appended
        pa.field("pending_seconds", pa.float64(), nullable=False),
        pa.field("paused_seconds", pa.float64(), nullable=False),
        pa.field("queue_seconds", pa.float64(), nullable=False),
        pa.field("generation_seconds", pa.float64(), nullable=False),
        pa.field("tool_queue_seconds", pa.float64(), nullable=False),
        pa.field("tool_seconds", pa.float64(), nullable=False),
        pa.field("engine_queue_seconds", pa.float64()),
        pa.field("engine_prefill_seconds", pa.float64()),
        pa.field("engine_decode_seconds", pa.float64()),
    ]
)

TOOLS = pa.schema(
    [
        *_KEY,
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("call", pa.int32(), nullable=False),  # index within the turn
        pa.field("name", pa.string(), nullable=False),
        pa.field("arguments", pa.string(), nullable=False),  # JSON object
        pa.field("status", pa.string(), nullable=False),  # ok | error | timeout | crashed
        pa.field("output", pa.string(), nullable=False),  # the observation as the agent saw it
        pa.field("exit_code", pa.int32()),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("output_bytes", pa.int64(), nullable=False),  # before the cap
        pa.field("started_seconds", pa.float64(), nullable=False),
        pa.field("queue_seconds", pa.float64(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
    ]
)

CONTROL = pa.schema(
    [
        pa.field("period", pa.int64(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("pool", pa.string(), nullable=False),  # one KV pool: replica, or replica.rank with several dp ranks
        pa.field("policy", pa.string(), nullable=False),
        pa.field("window_before", pa.int64()),  # null: unbounded
        pa.field("window_after", pa.int64()),
        pa.field("window_tokens", pa.int64()),  # what the window bounds in tokens; null: nothing
        pa.field("pool_share", pa.float64()),  # of the pool, how much that window relies on
        pa.field("intake_tokens", pa.int64()),  # that may come in until the next period; null: any number that fits
        pa.field("hold_seconds", pa.float64()),  # a longer tool wait gives its place up; null: none does
        pa.field("branch", pa.string(), nullable=False),  # grow | cut | hold | fixed
        pa.field("reason", pa.string(), nullable=False),
        pa.field("changes", pa.string()),  # what `concur ctl` changed since the row before
        pa.field("phase", pa.string(), nullable=False),  # warmup | middle | cooldown
        pa.field("pool_state", pa.string(), nullable=False),  # open | suspect | closed | suspended
        # What the engine said. usage U = locked / pool; hit_rate H = device hits / looked-up tokens of the period, as
        # the law got them; raw_*: before any smoothing over periods.
        pa.field("usage", pa.float64()),
        pa.field("hit_rate", pa.float64()),
        pa.field("raw_usage", pa.float64()),
        pa.field("raw_hit_rate", pa.float64()),
        pa.field("occupancy", pa.float64()),  # (locked + evictable) / pool: for phases, never for the law
        pa.field("stale", pa.bool_(), nullable=False),
        pa.field("estimated", pa.bool_(), nullable=False),  # the engine tells none of it: it is our own account
        pa.field("restarted", pa.bool_(), nullable=False),
        pa.field("sample_age_seconds", pa.float64()),
        pa.field("pool_tokens", pa.int64()),
        pa.field("locked_tokens", pa.int64()),
        pa.field("evictable_tokens", pa.int64()),
        pa.field("lookup_tokens", pa.int64()),
        pa.field("device_hit_tokens", pa.int64()),
        pa.field("host_hit_tokens", pa.int64()),
        pa.field("storage_hit_tokens", pa.int64()),
        pa.field("computed_tokens", pa.int64()),
        pa.field("decoded_tokens", pa.int64()),
        pa.field("evicted_tokens", pa.int64()),
        pa.field("retractions", pa.int64()),
        pa.field("offloaded_tokens", pa.int64()),
        pa.field("reloaded_tokens", pa.int64()),
        pa.field("offloaded_bytes", pa.int64()),
        pa.field("reloaded_bytes", pa.int64()),
        pa.field("reload_seconds", pa.float64()),  # that requests waited for reloads
        pa.field("running_requests", pa.int64()),
        pa.field("waiting_requests", pa.int64()),
        # What the turns that ended in this period tell themselves, of those that tell their cached tokens, and how far
        # the engine's counters are from it.
        pa.field("request_input_tokens", pa.int64(), nullable=False),
        pa.field("request_device_hit_tokens", pa.int64(), nullable=False),
        pa.field("recomputed_tokens", pa.int64(), nullable=False),
        pa.field("kept_tokens", pa.int64()),  # computed before, for agents that have kept their places since
        pa.field("lost_tokens", pa.int64()),  # of these, recomputed
        pa.field("drift_hit_rate", pa.float64()),  # H of the engine - H of the requests, over the last periods
        pa.field("drift_lookups", pa.float64()),  # looked-up tokens of the engine / of the requests
        # What the orchestrator knows itself. Agents that no pool holds anything of count in every pool's row.
        pa.field("in_flight_requests", pa.int64(), nullable=False),
        pa.field("pending", pa.int64(), nullable=False),
        pa.field("active", pa.int64(), nullable=False),  # generating
        pa.field("tool_wait", pa.int64(), nullable=False),
        pa.field("paused", pa.int64(), nullable=False),
        pa.field("queued", pa.int64(), nullable=False),  # wait for a permit between turns, request cap only
        pa.field("finished", pa.int64(), nullable=False),
        pa.field("places_held", pa.int64(), nullable=False),
        pa.field("marked", pa.int64(), nullable=False),  # to pause at their next boundary
        pa.field("adrift", pa.int64(), nullable=False),  # run on without a place until their next boundary
        pa.field("history_tokens", pa.int64(), nullable=False),  # of the agents that hold places
        pa.field("footprint_tokens", pa.int64()),  # the same, with what all have in common once
        pa.field("idle_tokens", pa.int64()),  # of these, what agents in tool wait have of their own
        pa.field("admitted_in_period", pa.int64(), nullable=False),
        pa.field("resumed_in_period", pa.int64(), nullable=False),
        pa.field("paused_in_period", pa.int64(), nullable=False),
        pa.field("completed_in_period", pa.int64(), nullable=False),
        pa.field("forced_in_period", pa.int64(), nullable=False),  # let in beyond the window
    ]
)

SCHEMAS: dict[str, pa.Schema] = {"agents": AGENTS, "turns": TURNS, "tools": TOOLS, "control": CONTROL}
