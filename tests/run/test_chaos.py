"""A few runs that each kind of fault befalls once between them: `make chaos`, small."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from concur_batch.bench.chaos.__main__ import disturb
from concur_batch.bench.chaos.disk import can_be_full
from concur_batch.bench.chaos.plan import KINDS, cover


@pytest.mark.timeout(600)
def test_whatever_befalls_runs_they_end_as_one_that_nothing_befell(tmp_path: Path) -> None:
    kinds = [kind for kind in KINDS if kind != "disk full" or can_be_full()]
    plans = list(enumerate(cover(1, 6, kinds)))
    outcomes = disturb(plans, tmp_path, 3, Console(width=160))
    assert [outcome.line() for outcome in outcomes if not outcome.good] == []
    assert sorted(kind for outcome in outcomes for kind in outcome.struck) == sorted(kinds)
    assert all(turns <= outcome.on_record[-1] for outcome in outcomes for turns in outcome.on_record)
