"""Which setting is recommended, how sure that is said to be, and that other work gets no ratio."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.bench.forecast import Forecast, compare, recommend, reference_of
from concur_batch.bench.prediction import Prediction

ROW = {
    "task_id": "a", "sample": 0, "final": True, "status": "finished",
    "turns": 3, "input_tokens": 900, "output_tokens": 60, "tool_calls": 2,
}  # fmt: skip


def prediction(seconds: float, **work: object) -> Prediction:
    return Prediction(seconds, 0.5, 0.0, 10, 0.1, 5, 0, None, None, 0, 0, 0.0, (), ({**ROW, **work},))


def forecast(name: str, *seconds: float, **work: object) -> Forecast:
    return Forecast(name, "hardware", tuple(prediction(each, **work) for each in seconds))


@pytest.mark.parametrize(
    ("ours", "theirs", "sure"),
    [
        ((100, 110, 90), (120, 125, 99), "clear"),  # slower by 20 %, 14 % and 10 %
        ((100, 110, 90, 100, 100), (120, 125, 99, 120, 98), "likely"),  # in four of five
        ((100, 110, 90), (120, 105, 99), "open"),  # in two of three
        ((100, 110, 90), (101, 111, 91), "open"),  # always, but by 1 %
        ((100, 110), (120, 125), "unknown"),  # two tell no spread
    ],
)
def test_how_sure_a_recommendation_is(ours: tuple[float, ...], theirs: tuple[float, ...], sure: str) -> None:
    found = recommend([forecast("none", *theirs), forecast("concur", *ours)])
    assert (found.best.name, found.second.name if found.second else None) == ("concur", "none")
    assert found.sure == sure


def test_the_words_have_the_numbers() -> None:
    found = recommend([forecast("none", 120, 125, 99), forecast("concur", 100, 110, 90)])
    assert found.text("3 seeds") == (
        "concur: simulated 100.0 s in the median of 3 seeds. The next, none, takes +13.6% (+10.0% to +20.0%) and is "
        "slower in 3 of 3. How sure: clear: the margin is there in every variation"
    )
    alone = recommend([forecast("concur", 100)])
    assert alone.text("1 seed").endswith("no other setting did the same work")


def test_the_reference_is_no_control_where_it_is_there() -> None:
    two = [forecast("concur", 1), forecast("agent_cap cap=3", 2)]
    assert reference_of(two).name == "concur"
    assert reference_of([*two, forecast("none u=1", 3)]).name == "none u=1"


def test_other_work_gets_no_ratio_and_is_not_recommended() -> None:
    none = forecast("none", 100, 110, 120)
    less = forecast("concur", 10, 11, 12, turns=2)
    compared = compare(none, less)
    assert compared.speed_up is None
    assert compared.differences == ("1 agent with other turns (totals 3 and 2): a/0 3 and 2",)
    assert recommend([none, less]).best == none
    once = dataclasses.replace(less, predictions=(*none.predictions[:2], prediction(12, turns=2)))
    assert compare(none, once).speed_up is None  # in one variation is enough


SECONDS = st.lists(st.floats(0.5, 1e4), min_size=3, max_size=3)


@given(st.lists(SECONDS, min_size=1, max_size=6))
def test_the_recommended_has_the_least_median_and_margins_of_the_next(settings: list[list[float]]) -> None:
    forecasts = [forecast(f"concur n={number}", *seconds) for number, seconds in enumerate(settings)]
    found = recommend(forecasts)
    assert found.best.median_seconds == min(statistics.median(seconds) for seconds in settings)
    if found.second is None:
        assert len(settings) == 1
    else:
        assert found.second.median_seconds >= found.best.median_seconds
        pairs = zip(found.best.seconds, found.second.seconds, strict=True)
        assert found.margins == tuple(theirs / ours - 1 for ours, theirs in pairs)
        if found.sure == "clear":
            assert all(margin > 0 for margin in found.margins)
    ratios = [compare(forecasts[0], each).speed_up for each in forecasts]
    assert ratios[0] == 1.0
