"""The audit of a whole run: which diagnoses are made of which rows, several pools, and what the verb prints."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from audit_rows import AGENTS, HEALTHY, ROOM, SETTINGS, Rows, bounds, cut, found, names, only, rows
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.cli.audit import audit as print_audit
from concur_batch.control.audit import audit, by_pool, operator_changes
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.schema import CONTROL


def test_the_helper_knows_all_columns() -> None:
    assert {*HEALTHY, "period", "seconds"} == set(CONTROL.names)


@pytest.mark.parametrize("policy", SETTINGS)
def test_a_healthy_run_has_none(policy: str) -> None:
    bound = bounds(policy)
    warmup = rows(8, **bound, phase="warmup", branch="grow", usage=0.1)
    assert names(warmup, rows(60, **bound), rows(3, **bound, pending=0), policy=policy) == []


def side_by_side(first: Rows, second: Rows) -> Rows:
    pairs = zip(first, second, strict=True)
    return [row for one, other in pairs for row in ({**one, "pool": "r0"}, {**other, "pool": "r1"})]


def test_pools_are_judged_apart_and_named() -> None:
    finding = only(side_by_side(rows(10), rows(10, pending=0)))
    assert (finding.name, finding.pool) == ("the window never binds", "r1")
    assert only(rows(10, pending=0)).pool is None
    # Mixed with the rows of r0, which only grows, the turns of r1 would be those of one window that swings.
    swinging = [row for _ in range(5) for row in (*rows(1, branch="grow"), *rows(1, branch="cut"), *rows(1))]
    assert [f.pool for f in found(side_by_side(rows(15, branch="grow"), swinging))] == ["r1"]


def test_a_pools_small_window_is_small_beside_its_share_of_the_batch() -> None:
    assert names(side_by_side(rows(10, window_after=3), rows(10, window_after=3))) == []
    assert len(found(side_by_side(rows(10, window_after=2), rows(10, window_after=2)))) == 2


def test_starvation_is_of_the_run() -> None:
    agents: Rows = [{"agent_id": f"a{number}", "paused_seconds": 2.0, "pauses": 1} for number in range(10)]
    agents[3] = {"agent_id": "unlucky", "paused_seconds": 90.0, "pauses": 7}
    assert only(side_by_side(rows(10), rows(10)), agents=agents).pool is None
    at_once: Rows = [{**row, "paused_seconds": 0.0} for row in agents]
    assert names(rows(10), agents=at_once) == [], "a pause that takes no time is none"


def test_the_operators_changes_are_listed_once() -> None:
    control = [
        {**HEALTHY, "pool": pool, "period": period, "seconds": 2.0 * period, "changes": changes}
        for period, changes in enumerate([None, "control.u_high 0.5 to 0.6", None, "control.u_high 0.5 to 0.6", None])
        for pool in ("r0", "r1")
    ]
    assert operator_changes(control) == [(2.0, "control.u_high 0.5 to 0.6"), (6.0, "control.u_high 0.5 to 0.6")]
    assert audit(control, AGENTS, SETTINGS["concur"]) == []  # a fact, no fault


@given(st.lists(st.tuples(st.sampled_from(["r0", "r1", "r2"]), st.integers())))
def test_rows_of_a_pool_keep_their_order(cells: list[tuple[str, int]]) -> None:
    pools = by_pool([{"pool": pool, "number": number} for pool, number in cells])
    assert {pool: [row["number"] for row in own] for pool, own in pools.items()} == {
        pool: [number for other, number in cells if other == pool] for pool, _ in cells
    }


@pytest.mark.parametrize("state", ["pending", "paused", "queued"])
def test_all_that_wait_count(state: str) -> None:
    outage = rows(2, pool_state="closed", **{"pending": 0, state: 17})
    assert "up to 17 agents" in only(rows(5), outage, policy="none").evidence


def test_a_run_without_periods_has_none() -> None:
    assert audit([], AGENTS, SETTINGS["steady"]) == []


PERIODS = st.lists(
    st.fixed_dictionaries(
        {
            "branch": st.sampled_from(["grow", "cut", "hold"]),
            "phase": st.sampled_from(["warmup", "middle", "cooldown"]),
            "pool_state": st.sampled_from(["open", "suspect", "closed", "suspended"]),
            "usage": st.none() | st.floats(0, 1),
            "hit_rate": st.none() | st.floats(0, 1),
            "stale": st.booleans(),
            "restarted": st.booleans(),
            "sample_age_seconds": st.none() | st.floats(0, 100),
            "pool_tokens": st.none() | st.integers(1, 1000),
            "computed_tokens": st.none() | st.integers(0, 1000),
            "recomputed_tokens": st.integers(0, 1000),
            "drift_hit_rate": st.none() | st.floats(-1, 1),
            "drift_lookups": st.none() | st.floats(0, 5),
            "history_tokens": st.integers(0, 2000),
            **{
                name: st.integers(0, 50)
                for name in ("pending", "paused", "queued", "tool_wait", "places_held", "marked", "adrift")
            },
            "resumed_in_period": st.integers(0, 9),
            "forced_in_period": st.integers(0, 9),
            "window_before": st.integers(1, 50),
            "window_after": st.integers(1, 50),
            "window_tokens": st.none() | st.integers(0, 1000),
            "pool_share": st.none() | st.floats(0.2, 1),
            "intake_tokens": st.none() | st.integers(0, 9000),
            "hold_seconds": st.none() | st.floats(0, 100),
            "footprint_tokens": st.integers(0, 2000),
            "kept_tokens": st.none() | st.integers(0, 1000),
            "lost_tokens": st.none() | st.integers(0, 1000),
        }
    ),
    max_size=12,
)


@given(PERIODS, st.sampled_from(["concur", "steady", "agent_cap", "none", "token_window"]), st.integers(0, 40))
def test_any_table_can_be_audited(periods: Rows, policy: str, pauses: int) -> None:
    unbounded = {"window_before": None, "window_after": None} if policy in ("none", "token_window") else {}
    agents: Rows = [{**AGENTS[0], "pauses": pauses}, *AGENTS[1:]]
    findings = found([{**HEALTHY, **row, **unbounded} for row in periods], policy=policy, agents=agents)
    assert len({finding.name for finding in findings}) == len(findings)
    assert all(finding.evidence and finding.cause and finding.change for finding in findings)


def run_with(control: Rows, path: Path, policy: str = "concur") -> Path:
    """A run directory with these control rows and nothing else."""
    write_manifest(path, {"run": "night-7", "workload": {"control": SETTINGS[policy]}})
    (path / "control").mkdir()
    numbered = [{**row, "period": number, "seconds": 1.0 + number} for number, row in enumerate(control)]
    pq.write_table(pa.Table.from_pylist(numbered, CONTROL), path / "control" / "0.parquet")
    return path


def test_the_verb_shows_each_windows_way_the_changes_and_the_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    climb = [row for after in range(2, 202, 2) for row in rows(1, branch="grow", window_after=after)]
    control = side_by_side([*climb, *cut(200, 100)], rows(101, pending=0, window_after=7))
    control[6]["changes"] = "control.u_high [bold] 0.6"
    print_audit(run_with(control, tmp_path / "run"))
    told = capsys.readouterr().out
    lines = told.splitlines()
    assert lines[0] == "night-7: policy concur, 101 control periods of each of 2 KV pools"
    assert lines[1] == "r0: W 2 to 100, least 2, most 200, increases 100, cuts 1"
    assert len(lines[2]) == len("r0: ") + 80  # the whole way, however long
    assert (lines[2][4], lines[2][-2]) == ("▁", "▇")
    assert lines[3] == "r1: W 7 to 7, least 7, most 7, increases 0, cuts 0"
    assert lines[5] == "changed at 7.00 s: control.u_high [bold] 0.6"
    assert "r1: the window never binds" in told


def test_the_verb_where_tokens_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filling = [row for part in range(10) for row in rows(1, **ROOM | {"footprint_tokens": 9_000 * (part + 1)})]
    over = rows(2, **ROOM | {"footprint_tokens": 90_000, "window_tokens": 45_000}, paused_in_period=3)
    print_audit(run_with([*filling, *over], tmp_path / "run", "token_window"))
    assert capsys.readouterr().out.splitlines() == [
        "night-7: policy token_window, 12 control periods",
        "tokens inside: 0.79 of the room, least 0.10, most 2.00; room 90 k to 45 k; 6 pauses in 2 periods",
        "▁▁▂▂▂▃▃▃▄▄██",
        "no diagnosis holds",
    ]


def test_the_verb_on_a_short_run_of_one_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_audit(run_with(rows(4, pending=0), tmp_path / "run"))
    assert capsys.readouterr().out.splitlines() == [
        "night-7: policy concur, 4 control periods",
        "W 40 to 40, least 40, most 40, increases 0, cuts 0",
        "████",
        "too few periods to judge a window by: 5 at least",
        "no diagnosis holds",
    ]


def test_the_verb_where_nothing_bounds_the_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_audit(run_with(rows(6, window_before=None, window_after=None, branch="fixed"), tmp_path / "run", "none"))
    assert capsys.readouterr().out.splitlines() == ["night-7: policy none, 6 control periods", "no diagnosis holds"]
