"""Hygiene of growth and cuts: each option against the failure that it prevents, shown without it first."""

from __future__ import annotations

from typing import Any

from agents_by_hand import arrive, congested, granted, obey, opened, refused, release, tell, underused

from concur_batch.control.growth import Growth
from concur_batch.control.law import Branch, Law
from concur_batch.control.load import Load
from concur_batch.control.member import State
from concur_batch.control.policies import Aimd
from concur_batch.control.policy import Verdict
from concur_batch.engine.signals import Sample


def policy(**options: Any) -> Aimd:
    return Aimd(Law(), 4, 1, 1000, Growth(**options))


def windows(law: Aimd, window: int, samples: list[Sample], first_second: int = 0, **load: int) -> list[int]:
    """The window after each of these periods of one second."""
    after = []
    for second, sample in enumerate(samples, first_second):
        window = law.step(window, sample, Load(float(second), **load)).after or 0
        after.append(window)
    return after


def test_growth_only_while_the_window_binds() -> None:
    """The cooldown of a batch: 8 agents are left and U is low. W climbs, and when those 8 thrash a cut does nothing."""
    for binding, grown, paused in ((False, 48, ""), (True, 8, "hgfe")):
        law, admission = policy(only_when_binding=binding), opened(8)
        arrive(admission, "abcdefgh")
        window = windows(law, 8, [underused()] * 20, waiting=admission.waiting)[-1]
        assert window == grown
        admission.resize({"p": window}, 20.0)
        cut = law.step(window, congested(), Load(21.0)).after
        assert refused(admission.resize({"p": cut}, 21.0)) == paused


def test_a_window_that_binds_grows_as_the_law_says() -> None:
    verdict = policy(only_when_binding=True).step(4, underused(), Load(0.0, waiting=1))
    assert verdict == Verdict(4, 6, Branch.GROW, "U 0.05, H 0.90")
    verdict = policy(only_when_binding=True).step(4, underused(), Load(0.0, waiting=0))
    assert verdict == Verdict(4, 4, Branch.HOLD, "U 0.05, H 0.90; no growth: nobody waits")


def test_a_window_of_one_can_bind() -> None:
    """peers.md section 3 row 4: a binding test by a share of the window was unsatisfiable for windows below 10."""
    assert windows(policy(only_when_binding=True), 1, [underused()] * 3, waiting=1) == [3, 5, 7]


def test_no_growth_into_an_engine_that_shows_nothing_of_what_agents_generate() -> None:
    """peers.md section 3 row 4, the error storm: every request fails, agents wait in long queues, the engine idles, so
    U is 0 and W climbs, by doubling even. An engine that computes, or whose agents are all in tools, is no such one."""
    silent = Sample(usage=0.0, hit_rate=None, lookup_tokens=0, running_requests=0)
    for options, grown in (({}, 4 + 2 * 15), ({"slow_start": True}, 1000), ({"only_when_served": True}, 4)):
        assert windows(policy(**options), 4, [silent] * 15, generating=4, waiting=1000)[-1] == grown
    law = policy(only_when_served=True)
    assert law.step(4, silent, Load(0.0, generating=4, waiting=9)).reason == (
        "U 0.00, H undefined; no growth: 4 agents generate and the engine shows none of it"
    )
    assert law.step(4, silent, Load(0.0, generating=0, waiting=9)).branch is Branch.GROW
    for signs in ({"lookup_tokens": 1, "running_requests": 0}, {"lookup_tokens": 0, "running_requests": 1}):
        served = Sample(usage=0.0, hit_rate=None, **signs)
        assert law.step(4, served, Load(0.0, generating=4, waiting=9)).branch is Branch.GROW
    # An engine that does not tell its look-ups is not known to be idle.
    assert law.step(4, Sample(usage=0.0), Load(0.0, generating=4, waiting=9)).branch is Branch.GROW


def test_one_cut_for_one_congestion() -> None:
    """H stays low until the pauses have taken effect: five periods of it leave 2 of 64, or 32."""
    assert windows(policy(), 64, [congested()] * 5, marked=9) == [32, 16, 8, 4, 2]
    assert windows(policy(cut_cooldown_seconds=3.0), 64, [congested()] * 5, marked=9) == [32, 32, 32, 32, 32]


def test_the_next_cut_comes_one_cooldown_after_the_pauses_took_effect() -> None:
    law, verdicts = policy(cut_cooldown_seconds=3.0), []
    for second, marked in enumerate([0, 5, 2, 0, 0, 0, 0, 0, 0, 0, 0]):
        verdicts.append(law.step(64, congested(), Load(float(second), marked=marked)).branch is Branch.CUT)
    # Cut at 0; drained at 3; the cooldown is over at 6. That cut marks nobody: it is drained at 7, over at 10.
    assert [second for second, cut in enumerate(verdicts) if cut] == [0, 6, 10]


def test_the_window_does_not_grow_either_until_the_cut_has_had_its_effect() -> None:
    law = policy(cut_cooldown_seconds=3.0)
    law.step(64, congested(), Load(0.0))
    held = law.step(32, underused(), Load(1.0, marked=1, waiting=5))
    assert (held.after, held.branch) == (32, Branch.HOLD)
    assert held.reason.endswith("no grow before the last cut has had its effect")
    quiet = law.step(32, Sample(usage=0.4, hit_rate=0.9), Load(2.0))
    assert quiet == Verdict(32, 32, Branch.HOLD, "U 0.40, H 0.90")


def test_a_hung_agent_cannot_hold_the_congestion_open_for_ever() -> None:
    """Its mark never takes effect. Ten cooldowns after the cut the window is free again, and not a moment before."""
    law = policy(cut_cooldown_seconds=3.0)
    assert windows(law, 64, [congested()] * 30, first_second=100, marked=1) == [32] * 30
    assert windows(law, 32, [congested()], first_second=130, marked=1) == [16]


def test_fifty_failures_inside_one_tick_are_one_cut_and_the_window_recovers() -> None:
    """peers.md section 3 row 5: one burst of failures was many halvings, and the limit never recovered.

    64 agents thrash and H stays low for five periods: one cut; slow growth is back at 64 within 16 + 10 periods. (A
    burst of failing requests is in test_governor.)
    """
    law, admission, letters = policy(cut_cooldown_seconds=2.0), opened(64), [chr(1000 + n) for n in range(64)]
    arrive(admission, letters)
    cuts, window, now_seconds = 0, 64, 0.0
    for second in range(6):
        now_seconds = float(second)
        verdict = law.step(window, congested(), Load(now_seconds, marked=len(admission.windows["p"].marked)))
        cuts, window = cuts + (verdict.branch is Branch.CUT), verdict.after or 0
        marks = admission.resize({"p": window}, now_seconds)
        if second == 0:
            assert len(refused(marks)) == 32
            late = marks
        if second == 4:  # the tools end now
            obey(admission, late, now_seconds)
    assert (cuts, window, admission.places_held) == (1, 32, 32)
    for period in range(1, 27):
        load = Load(now_seconds + period, waiting=admission.waiting)
        window = law.step(window, underused(), load).after or 0
        admission.resize({"p": window}, load.seconds)
        if window >= 64:
            break
    assert period <= 26
    assert (admission.waiting, admission.places_held) == (0, 64)


def test_slow_start() -> None:
    """From 4 to 256: 126 periods of alpha, or 6 doublings."""
    by_alpha = windows(policy(), 4, [underused()] * 200, waiting=1)
    doubled = windows(policy(slow_start=True), 4, [underused()] * 200, waiting=1)
    assert next(period for period, window in enumerate(by_alpha, 1) if window >= 256) == 126
    assert next(period for period, window in enumerate(doubled, 1) if window >= 256) == 6
    assert doubled[:6] == [8, 16, 32, 64, 128, 256]


def test_slow_start_never_grows_less_than_the_law() -> None:
    assert windows(policy(slow_start=True), 1, [underused()] * 3, waiting=1) == [3, 6, 12]


def test_slow_start_ends_with_the_first_cut() -> None:
    law = policy(slow_start=True)
    assert windows(law, 32, [underused(), congested(), underused(), underused()], waiting=1) == [64, 32, 34, 36]


def test_slow_start_leads_back_to_what_the_last_cut_left() -> None:
    """A smaller `max_window`, set and taken back on a live run: no further than to the window that held."""
    law = policy(slow_start=True)
    law.step(64, congested(), Load(0.0))
    assert windows(law, 10, [underused()] * 4, first_second=1) == [20, 32, 34, 36]


def test_a_collapse_is_remembered() -> None:
    """The batch thrashes at 40 and above. The law runs into it at full speed each time, the memory walks."""
    for remember, climbed in ((False, [36, 38, 40, 42]), (True, [36, 38, 39, 40])):
        law = policy(remember_collapse=remember)
        law.step(40, congested(), Load(0.0))
        assert windows(law, 34, [underused()] * 4, first_second=1) == climbed


def test_beyond_a_remembered_collapse_it_goes_on_by_one() -> None:
    law = policy(remember_collapse=True)
    law.step(10, congested(), Load(0.0))
    assert windows(law, 5, [underused()] * 7, first_second=1) == [7, 9, 10, 11, 12, 13, 14]
    verdict = law.step(14, underused(), Load(9.0))
    assert verdict.reason.endswith("slowly, since a window of 14 has collapsed")


def test_a_cut_pauses_and_growth_resumes_the_same_agents() -> None:
    """The law's steps and the window's together: W=4, a cut, a hold, an end, a growth."""
    law, admission = policy(), opened(4)
    arrive(admission, "abcdef")
    tell(admission, "abcd", State.TOOL_WAIT)
    cut = law.step(4, Sample(usage=0.65, hit_rate=0.15), Load(1.0)).after
    marks = admission.resize({"p": cut}, 1.0)
    assert refused(marks) == "dc"
    assert admission.places_held == 4  # their running generations end normally
    assert obey(admission, marks, 2.0) == []
    assert law.step(2, Sample(usage=0.45, hit_rate=0.82), Load(2.0)).after == 2
    assert granted(release(admission, "a", 3.0)) == "d"  # the paused come before the new
    grown = law.step(2, Sample(usage=0.18, hit_rate=0.82), Load(4.0)).after
    assert granted(admission.resize({"p": grown}, 4.0)) == "ce"
