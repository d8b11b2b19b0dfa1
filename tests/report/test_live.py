"""What a person sees: every figure of a snapshot, on a terminal, without one, and in the closing table."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from concur_batch.driver.snapshot import Snapshot, join
from concur_batch.report.live import LineView, LiveView, make_view
from concur_batch.report.table import summary_table

CONTROL = {
    "window": 12, "active": 7, "tool_wait": 3, "paused": 2, "pending": 40, "usage": 0.43, "hit_rate": 0.81,
    "occupancy": 0.97, "phase": "middle",
}  # fmt: skip
HOST: dict[str, Any] = {
    "sums": {
        "turns": 300, "tool_calls": 410, "input_tokens": 1_200_000, "output_tokens": 45_000,
        "cached_device_tokens": 900_000, "first_tokens": 200_000, "recomputed_tokens": 100_000, "rounding_tokens": 0,
        "tool_seconds": 38.0,
    },
    "endings": {"finished": 30, "infrastructure": 1},
    "rewards": (30, 27.0),
    "loop_lag_p99_seconds": 0.01,
    "recorder_error": None,
}  # fmt: skip


def snapshot() -> Snapshot:
    return join(20.0, 96, CONTROL, [HOST, {**HOST, "recorder_error": "No space left"}])


def shown(width: int, *, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, color_system=None)
    with make_view(console, "demo on SIMULATED engine") as view:
        view.show(snapshot())
        view.note("host1 died")
    return stream.getvalue()


def test_hosts_are_joined() -> None:
    joined = snapshot()
    assert (joined.ended, joined.endings["infrastructure"], joined.rewarded) == (62, 2, 60)
    assert joined.hit_rate == 0.75
    assert joined.recomputed_share == pytest.approx(1 / 3)
    assert joined.eta_seconds == pytest.approx(20 / 62 * 34)


def test_turns_that_tell_no_cached_tokens_are_no_misses() -> None:
    untold = {**HOST, "sums": {"input_tokens": 5_000_000, "cached_device_tokens": 0, "first_tokens": 0}}
    assert join(1.0, 1, {}, [HOST, untold]).hit_rate == 0.75
    assert join(1.0, 1, {}, [untold]).hit_rate is None
    stream = io.StringIO()
    with make_view(Console(file=stream, width=110, force_terminal=True, color_system=None), "") as view:
        view.show(join(1.0, 1, {**CONTROL, "estimated": True}, [untold]))
    assert "hit rate not told   recomputed not told" in stream.getvalue()
    assert "U and H estimated" in stream.getvalue()


def test_the_panel_shows_every_figure() -> None:
    text = shown(110, terminal=True)
    for figure in ("SIMULATED", "62/96", "W 12", "U 0.43", "H 0.81", "middle", "0.97", "active 7", "tool wait 3",
                   "paused 2", "pending 40", "recomputed 0.33", "820 calls", "reward 0.90 over 60", "infrastructure 2",
                   "No space left", "host1 died"):  # fmt: skip
        assert figure in text, figure


def test_a_window_in_tokens_is_told_in_tokens() -> None:
    control = {**CONTROL, "window": None, "window_tokens": 1_600_000, "footprint_tokens": 1_200_000}
    pools = {name: pool(name, window=None, window_tokens=800_000, footprint_tokens=50_000) for name in "01"}
    shown = []
    for terminal in (True, False):
        stream = io.StringIO()
        with make_view(Console(file=stream, width=110, force_terminal=terminal, color_system=None), "") as view:
            for share in (0.25, 1.0):
                inside = {"footprint_tokens": int(share * 1_200_000)}
                view.show(join(10 * share, 1, {**control, **inside, "pools": pools}, []))
        shown.append(stream.getvalue())
    for text in shown:
        assert "W 1.2 M of 1.6 M tokens inside" in text
        assert "∞" not in text and "inf" not in text
    assert "0   W 50 k of 800 k tokens inside   held 3" in shown[0]
    assert "tokens inside   ▂█" in shown[0], "the bars are of the tokens"


def test_a_window_without_bound() -> None:
    for terminal, told in ((True, "W ∞"), (False, "W inf")):
        stream = io.StringIO()
        with make_view(Console(file=stream, width=110, force_terminal=terminal, color_system=None), "") as view:
            view.show(join(1.0, 1, {**CONTROL, "window": None, "window_tokens": None}, []))
        assert told in stream.getvalue()


def pool(name: str, state: str = "open", window: int | None = 4, **columns: Any) -> dict[str, Any]:
    return {
        "pool": name, "window_after": window, "pool_state": state, "places_held": 3, "usage": 0.5, "hit_rate": None,
        "window_tokens": None, "footprint_tokens": 50_000, **columns,
    }  # fmt: skip


def test_several_pools_are_shown_one_by_one_and_a_single_one_is_not() -> None:
    def text(pools: dict[str, Any]) -> str:
        stream = io.StringIO()
        with make_view(Console(file=stream, width=110, force_terminal=True, color_system=None), "") as view:
            view.show(join(1.0, 1, {**CONTROL, "pools": pools}, []))
        return stream.getvalue()

    shown = text({"0": pool("0"), "1": pool("1", "closed", None)})
    assert "0   W 4   held 3   U 0.50   H –" in shown
    assert "1   W ∞   held 3   U 0.50   H –   closed" in shown
    assert "pools" not in text({"0": pool("0")})


@pytest.mark.parametrize(
    ("silent", "told"),
    [
        ([], None),
        (["0", "1", "2"], "the engine does not answer: its agents wait"),
        (["1"], "pool 1 does not answer: its agents wait"),
        (["0", "2"], "pools 0, 2 do not answer: their agents wait"),
    ],
)
def test_pools_that_do_not_answer_are_told_once(silent: list[str], told: str | None) -> None:
    control = {**CONTROL, "pools": {name: pool(name) for name in "012"}, "silent_pools": silent}
    stream = io.StringIO()
    with make_view(Console(file=stream, width=110), "") as view:
        for seconds in (1.0, 2.0):
            view.show(join(seconds, 1, control, []))
    assert [line for line in stream.getvalue().splitlines() if "answer" in line] == ([] if told is None else [told])


def test_a_run_that_the_operator_paused_says_so() -> None:
    assert join(1.0, 1, {**CONTROL, "suspended": True}, []).notes == ("paused by the operator",)


def test_without_a_terminal_there_are_plain_lines() -> None:
    text = shown(80, terminal=False)
    assert "\x1b" not in text
    line = next(line for line in text.splitlines() if "ended" in line)
    for figure in ("62/96", "W 12", "active 7", "U 0.43", "H 0.81", "middle"):
        assert figure in line


def test_the_console_decides_which() -> None:
    assert isinstance(make_view(Console(force_terminal=True), ""), LiveView)
    assert isinstance(make_view(Console(file=io.StringIO()), ""), LineView)


def test_the_closing_table_names_a_simulation_and_every_failure() -> None:
    zero = dict.fromkeys(
        ("turns", "tool_calls", "tool_seconds", "input_tokens", "output_tokens", "output_tokens_per_second",
         "evicted_tokens", "cached_device_tokens", "cached_host_tokens", "seconds", "pauses", "window_cuts",
         "window_increases"), 0,
    )  # fmt: skip
    summary = {
        **zero, "run": "r", "status": "interrupted", "simulated": True, "agents": 9, "finished": 5, "limit": 1,
        "failed": 2, "oversized": 3, "cancelled": 0, "unfinished": 1, "failures": {"model": 2}, "reward_mean": 0.5,
        "rewarded": 6, "policy": "concur", "pools": 1,
        "turns_median": 3,
        "hit_rate": None, "recomputed_share": 0.25, "window_min": 4, "window_max": 8, "window_mean": 5.5,
        "footprint_share_mean": None, "footprint_share_max": None, "pausing_periods": 0, "pauses_mean": 0.0,
        "pauses_max": 0, "longest_pause_seconds": 0.0, "wait_gini": 0.126,
        "phase_seconds": {"warmup": 2.0},
    }  # fmt: skip

    def printed(**changes: Any) -> str:
        stream = io.StringIO()
        Console(file=stream, width=110).print(summary_table({**summary, **changes}))
        return stream.getvalue()

    shown = printed()
    for figure in (
        "simulated",
        "5 finished",
        "1 at a limit",
        "2 failed (2 model)",
        "3 oversized",
        "1 unfinished",
        "0.500",
        "0.25",
        "–",
    ):
        assert figure in shown, figure
    assert "cancelled" not in shown
    assert "not told" not in shown
    assert "4 to 8, mean 5.5; 0 increases, 0 cuts" in shown
    assert "none; Gini of waiting 0.13" in shown
    assert "tokens inside" not in shown
    room = printed(
        window_max=None, footprint_share_mean=0.6214, footprint_share_max=1.031, pools=2, pauses=1234, pauses_mean=1.52,
        pauses_max=6, longest_pause_seconds=72.31, pausing_periods=1, wait_gini=0.5,
    )  # fmt: skip
    assert "tokens inside: mean 0.62, at most 1.03 of the room; over 2 pools" in room
    assert "increases" not in room
    assert "1.23 k in 1 period (1.52 an agent, at most 6), the longest 72.3 s; Gini of waiting 0.50" in room
    untold = printed(cached_device_tokens=None, recomputed_share=None, evicted_tokens=None)
    assert "hit rate not told, recomputed not told of prefill, evictions not told" in untold
