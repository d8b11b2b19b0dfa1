"""What a run says at its start of signals that its engine lacks."""

from __future__ import annotations

import pytest

from concur_batch.driver.missing import missing_notes
from concur_batch.engine.protocol import EngineInfo
from concur_batch.workload.schema import AgentCap, AnyControl, Concur, Steady, TokenWindow

CONCUR = Concur(policy="concur", initial_window=9)
TOKENS = TokenWindow(policy="token_window", initial_window=9)
BLIND = ("KV usage", "occupancy", "hit rate")


def info(*missing: str, pool: int | None = None) -> EngineInfo:
    return EngineInfo(None, pool, 1, 4096, missing, pool_tokens_by_rank=(pool,))


def effects(control: AnyControl, *infos: EngineInfo) -> dict[str, str]:
    """By signal, what follows from its lack."""
    notes = missing_notes(infos, control)
    told = [note.removeprefix("the engine does not tell its ").partition(": ") for note in notes]
    return {name: effect for name, _, effect in told}


def test_an_engine_that_tells_all_is_not_spoken_of() -> None:
    assert missing_notes([info(pool=1000)], CONCUR) == []


def test_a_lack_without_consequence_is_only_named() -> None:
    assert effects(CONCUR, info("occupancy", pool=1000)) == {"occupancy": ""}


def test_where_the_size_is_known_both_are_estimated() -> None:
    told = effects(CONCUR, info(*BLIND, pool=1000))
    assert "U is estimated" in told["KV usage"]
    assert "requests' own cached tokens" in told["hit rate"]
    assert told["occupancy"] == ""


def test_where_nothing_tells_hits_the_window_is_never_cut() -> None:
    told = effects(CONCUR, info(*BLIND, "cached tokens", pool=1000))
    assert "never cut" in told["hit rate"]
    assert "U is estimated" in told["KV usage"]


@pytest.mark.parametrize("control", [CONCUR, Steady(policy="steady", initial_window=9), TOKENS])
def test_where_the_size_is_unknown_the_window_stays_and_the_mend_is_told(control: AnyControl) -> None:
    told = effects(control, info(*BLIND, pool=1000), info(*BLIND))
    assert "stays at 9" in told["KV usage"]
    assert "engine.pool_tokens" in told["KV usage"]
    assert "agent_cap" in told["KV usage"]
    assert told["hit rate"] == ""


def test_a_cap_needs_no_signal() -> None:
    told = effects(AgentCap(policy="agent_cap", cap=3), info(*BLIND, "cached tokens"))
    assert set(told.values()) == {""}
