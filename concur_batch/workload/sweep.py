"""Several settings of one workload: policies, and the values of swept keys, as overrides. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from concur_batch.workload.errors import InputError, Problem
from concur_batch.workload.schema import AnyControl
from concur_batch.workload.source import read_yaml_value

# The class of each policy's settings, by its name.
POLICIES = {get_args(variant.model_fields["policy"].annotation)[0]: variant for variant in get_args(AnyControl)}


@dataclass(frozen=True, slots=True)
class Setting:
    """One of those that are compared: its name in tables, and the overrides that make it of the workload."""

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A key and the values that it takes."""

    key: str
    values: tuple[Any, ...]

    def concerns(self, policy: str) -> bool:
        """Not those of `control` that only other policies have: the policy is then simulated once, without them."""
        block, _, rest = self.key.partition(".")
        name = rest.partition(".")[0]
        known = any(name in variant.model_fields for variant in POLICIES.values())
        return block != "control" or not known or name in POLICIES[policy].model_fields


def read_sweep(text: str) -> Sweep:
    """`control.u_high=0.4,0.5`: the values are YAML, as those of --set. Raises InputError."""
    file = f"--sweep {text}"
    key, equals, listed = text.partition("=")
    if not equals or not all(key.strip().split(".")):
        mend = "write --sweep control.u_high=0.4,0.5"
        raise InputError([Problem(file, None, "", "is not of the form key.path=value,value", mend)])
    if key.strip() == "control.policy":
        raise InputError([Problem(file, None, "", "policies are no values of a key", "give each as --policy NAME")])
    values = read_yaml_value(f"[{listed}]", file)
    if not isinstance(values, list) or not values:
        raise InputError([Problem(file, None, "", "has no values", "write them with commas between")])
    return Sweep(key.strip(), tuple(values))


def make_settings(policies: Sequence[str], sweeps: Sequence[Sweep]) -> list[Setting]:
    """Every policy under every combination of the values of the sweeps that concern it."""
    settings = []
    for policy in policies:
        concerned = [sweep for sweep in sweeps if sweep.concerns(policy)]
        for values in itertools.product(*(sweep.values for sweep in concerned)):
            given = [(sweep.key, json.dumps(value)) for sweep, value in zip(concerned, values, strict=True)]
            name = " ".join([policy, *(f"{key.rpartition('.')[2]}={_plain(value)}" for key, value in given)])
            overrides = (f"control.policy={policy}", *(f"{key}={value}" for key, value in given))
            settings.append(Setting(name, overrides))
    return settings


def _plain(value: str) -> str:
    return value.strip('"')
