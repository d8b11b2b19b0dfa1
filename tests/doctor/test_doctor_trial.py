"""Judging one pool's signals: a healthy trial, and one in which a single thing is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.doctor.finding import Finding
from concur_batch.doctor.trial import Trial, hit_counter, judge, locked_tokens
from concur_batch.engine.protocol import Generation, Reading

REST = Reading(
    at_seconds=0.0,
    stamp_seconds=100.0,
    locked_tokens=0,
    evictable_tokens=0,
    running_requests=0,
    input_tokens_total=500,
    device_hit_tokens_total=40,
)
COUNTED = replace(REST, stamp_seconds=100.1, evictable_tokens=65, input_tokens_total=566, device_hit_tokens_total=104)
RUNNING = replace(COUNTED, stamp_seconds=100.2, locked_tokens=120, running_requests=1)
AFTER = replace(COUNTED, stamp_seconds=101.0, evictable_tokens=200)
TRIAL = Trial(
    before=REST,
    first=Generation([1], "length", 65, 0),
    second=Generation([1], "length", 65, 64),
    counted=COUNTED,
    during=(COUNTED, RUNNING),
    after=AFTER,
)


def verdicts(trial: Trial) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in judge(trial, "sglang") if finding.verdict != "ok"}


def test_a_healthy_pool() -> None:
    assert verdicts(TRIAL) == {}
    assert {finding.name: finding.seen for finding in judge(TRIAL, "sglang")} == {
        "cached tokens": "a repeated prompt hit 64 of 65 tokens",
        "hit counters": "grew by 64 hits and 66 misses",
        "locked tokens": "0 at rest, 120 during a generation, 0 after it",
        "evictable tokens": "200",
        "running requests": "1 seen",
        "time stamps": "advanced by 1.0 s",
    }


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        (replace(TRIAL, second=TRIAL.first), {"cached tokens": "failure"}),
        (replace(TRIAL, first=TRIAL.second), {"cached tokens": "failure"}),
        (replace(TRIAL, counted=replace(COUNTED, device_hit_tokens_total=103)), {"hit counters": "failure"}),
        (replace(TRIAL, counted=replace(COUNTED, input_tokens_total=500)), {"hit counters": "failure"}),
        (replace(TRIAL, counted=replace(COUNTED, input_tokens_total=None)), {"hit counters": "failure"}),
        (replace(TRIAL, after=replace(AFTER, locked_tokens=120)), {"locked tokens": "failure"}),
        (replace(TRIAL, after=replace(AFTER, locked_tokens=None)), {"locked tokens": "failure"}),
        (replace(TRIAL, during=(replace(RUNNING, locked_tokens=0),)), {"locked tokens": "failure"}),
        (replace(TRIAL, after=replace(AFTER, evictable_tokens=0)), {"evictable tokens": "warning"}),
        (replace(TRIAL, during=(replace(RUNNING, running_requests=0),)), {"running requests": "failure"}),
        (replace(TRIAL, during=(RUNNING,), after=replace(AFTER, stamp_seconds=99.0)), {}),
        (replace(TRIAL, during=()), {"locked tokens": "failure", "running requests": "warning"}),
    ],
)
def test_one_thing_is_wrong(trial: Trial, expected: dict[str, str]) -> None:
    assert verdicts(trial) == expected


def test_hits_in_the_host_tier_count_as_cached() -> None:
    host = Generation([1], "length", 65, 0, cached_host_tokens=64)
    found = next(finding for finding in judge(replace(TRIAL, second=host), "sglang") if finding.name == "cached tokens")
    assert (found.verdict, found.seen) == ("ok", "a repeated prompt hit 64 of 65 tokens")


def test_others_requests_make_a_failure_of_the_gauge_a_doubt() -> None:
    full = replace(AFTER, locked_tokens=500)
    assert locked_tokens(replace(TRIAL, after=full), "sglang").verdict == "failure"
    assert locked_tokens(replace(TRIAL, after=replace(full, running_requests=3)), "sglang").verdict == "warning"
    two = replace(RUNNING, running_requests=2)
    assert locked_tokens(replace(TRIAL, after=full, during=(two,)), "sglang").verdict == "warning"


def test_the_mend_names_the_servers_own_option() -> None:
    blind = replace(TRIAL, counted=replace(COUNTED, device_hit_tokens_total=None))
    assert "--enable-metrics" in hit_counter(blind, "sglang").mend
    assert "--disable-log-stats" in hit_counter(blind, "vllm").mend


_tokens = st.none() | st.integers(0, 10**6)
_readings = st.builds(
    Reading,
    at_seconds=st.just(0.0),
    stamp_seconds=st.none() | st.floats(0, 1e9),
    locked_tokens=_tokens,
    evictable_tokens=_tokens,
    running_requests=st.none() | st.integers(0, 9),
    input_tokens_total=_tokens,
    device_hit_tokens_total=_tokens,
)
_generations = st.builds(
    Generation,
    output_ids=st.just([1]),
    finish_reason=st.just("length"),
    input_tokens=st.just(65),
    cached_device_tokens=st.integers(0, 65),
)


@given(
    st.builds(
        Trial,
        before=_readings,
        first=_generations,
        second=_generations,
        counted=_readings,
        during=st.lists(_readings, max_size=4).map(tuple),
        after=_readings,
    ),
    st.sampled_from(("sglang", "vllm")),
)
def test_whatever_is_told_is_judged(trial: Trial, kind: str) -> None:
    findings: list[Finding] = list(judge(trial, kind))  # type: ignore[arg-type]
    assert len({finding.name for finding in findings}) == 6
    assert all(bool(finding.mend) == (finding.verdict != "ok") for finding in findings)
    # What the law cannot do without is never taken as well where it is not told, or has not moved.
    verdict = {finding.name: finding.verdict for finding in findings}
    told = [reading.locked_tokens for reading in trial.during if reading.locked_tokens is not None]
    if trial.after.locked_tokens is None or max(told, default=0) <= trial.after.locked_tokens:
        assert verdict["locked tokens"] != "ok"
    if trial.counted.device_hit_tokens_total in (None, trial.before.device_hit_tokens_total):
        assert verdict["hit counters"] == "failure"
