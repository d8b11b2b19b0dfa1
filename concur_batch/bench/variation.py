"""Variations of a simulated batch: what a prediction is worth shows in how far they lie apart. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from concur_batch.bench.plans import Load
from concur_batch.simulator.cost import CostModel

# Of a trace that was recorded once, what is not known exactly is changed by so much, one thing at a time.
_CHANGE = 0.2


@dataclass(frozen=True, slots=True)
class Variation:
    """What is other than as it was told: the seed by so much, the others by factors."""

    name: str
    seed: int = 0
    tool_times: float = 1.0
    prefill: float = 1.0
    decode: float = 1.0
    host_link: float = 1.0

    def of_cost(self, cost: CostModel) -> CostModel:
        """The costs under this variation."""
        factors = {"prefill": self.prefill, "decode": self.decode, "load": self.host_link, "store": self.host_link}
        changes = {
            name: getattr(cost, name) * factor
            for name in CostModel.__dataclass_fields__
            if (factor := factors.get(name.partition("_")[0], 1.0)) != 1.0
        }
        return replace(cost, **changes) if changes else cost

    def of_load(self, make: Callable[[int], Load]) -> Load:
        """The load under this variation; `make` makes it of a change of the seed."""
        load = make(self.seed)
        return load if self.tool_times == 1.0 else load.with_tool_times(self.tool_times)


def seeded(count: int) -> list[Variation]:
    """Of a load that is drawn: so many seeds."""
    return [Variation(f"seed +{number}" if number else "seed", seed=number) for number in range(count)]


def perturbed(*, host_link: bool) -> list[Variation]:
    """Of a load that is known once: as it is, and with tools and costs slower and faster."""
    found = [Variation("as recorded")]
    for change in (-_CHANGE, _CHANGE):
        factor, told = 1 + change, f"{change:+.0%}"
        found.append(Variation(f"tool times {told}", tool_times=factor))
        found.append(Variation(f"prefill {told}", prefill=factor))
        found.append(Variation(f"decode {told}", decode=factor))
        if host_link:
            found.append(Variation(f"host link {told}", host_link=factor))
    return found
