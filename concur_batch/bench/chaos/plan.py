"""What befalls a run, and when: drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "host",
    "recorder",
    "controller",
    "engine",
    "tool hung",
    "disk full",
    "host frozen",
    "driver frozen",
    "driver",
    "launcher",
    "raylet",
    "GCS",
    "SIGINT",
    "SIGTERM",
    "signal twice",
]
"""A process that is killed with SIGKILL, by its name, or what else befalls the run."""

KINDS: tuple[Kind, ...] = get_args(Kind)
ENDING: frozenset[Kind] = frozenset(KINDS[KINDS.index("driver") :])
"""After which a command ends, which the next one has to resume."""

Phase = Literal["start", "work", "end"]
_PHASES: tuple[Phase, ...] = get_args(Phase)
After = Literal["wakes", "driver", "host", "signals"]
"""What ends the hang of a tool: it goes on, or its driver or host is killed, or the command gets two signals."""

# Of those, the ones after which the command goes on.
_GOING_ON: tuple[After, ...] = ("wakes", "host")
_PHASE_WEIGHTS = (3, 13, 4)
# Ray is up after about five seconds, and the run is closed within two of its last agent's end.
_MOST: dict[Phase, float] = {"start": 9.0, "work": 1.0, "end": 1.5}
# A command is looked at a few times a second; that must not decide where between two turns a fault strikes.
_JITTER_SECONDS = 0.3
_HOLD_SECONDS: dict[Kind, tuple[float, float]] = {
    "tool hung": (0.3, 3.0),
    "disk full": (0.5, 6.0),
    "host frozen": (1.0, 5.0),
    "driver frozen": (1.0, 5.0),
    "signal twice": (0.0, 1.5),
}
_SECOND_FAULT = 0.3
_NEXT_LIFE = 0.4
_MOST_LIVES = 4


@dataclass(frozen=True, slots=True)
class Moment:
    """When a fault strikes a command.

    `start`: so many seconds after the command began. `work`: when that share of the turns that were missing when it
    began is on record. `end`: so many seconds after the end of the last agent is on record.
    """

    phase: Phase
    amount: float

    @property
    def order(self) -> tuple[int, float]:
        """By which moments of a command come one after the other."""
        return _PHASES.index(self.phase), self.amount

    def __str__(self) -> str:
        match self.phase:
            case "start":
                return f"{self.amount:.1f} s after the start"
            case "work":
                return f"{self.amount:.0%} of the turns"
            case "end":
                return f"{self.amount:.1f} s after the last end"


@dataclass(frozen=True, slots=True)
class Fault:
    """`which` of several victims, modulo their number; `hold_seconds` is how long what is stopped stays so, the disk
    full, or a second signal away; `after` is for a tool that hangs."""

    kind: Kind
    moment: Moment
    jitter_seconds: float
    which: int
    hold_seconds: float
    after: After


Life = tuple[Fault, ...]
"""What befalls one command, in order."""
Plan = tuple[Life, ...]
"""Of a run: its first command, and as many resumes as are disturbed too."""


def draw(seed: int, number: int, kinds: Sequence[Kind] = KINDS) -> Plan:
    """The plan of a run. Among as many successive runs as there are kinds, each kind comes first once."""
    rng = random.Random(f"{seed} {number}")
    cycle, place = divmod(number, len(kinds))
    first = random.Random(f"{seed} cycle {cycle}").sample(kinds, len(kinds))[place]
    lives = [[first]]
    while len(lives) < _MOST_LIVES and rng.random() < _NEXT_LIFE:
        lives.append([rng.choice(kinds)])
    for life in lives:
        if rng.random() < _SECOND_FAULT:
            life.append(rng.choice(kinds))
    return tuple(_life(rng, life, early=False) for life in lives)


def cover(seed: int, runs: int, kinds: Sequence[Kind] = KINDS) -> list[Plan]:
    """Plans that have each kind once between them, early enough to strike."""
    rng = random.Random(f"{seed} cover")
    dealt = rng.sample(kinds, len(kinds))
    plans = []
    for number in range(runs):
        lives: list[list[Kind]] = [[]]
        for kind in sorted(dealt[number::runs], key=lambda kind: kind in ENDING):
            lives[-1].append(kind)
            if kind in ENDING:
                lives.append([])
        plans.append(tuple(_life(rng, life, early=True) for life in lives if life))
    return plans


def _life(rng: random.Random, kinds: Sequence[Kind], *, early: bool) -> Life:
    """What ends a command befalls it last."""
    kinds = sorted(kinds, key=lambda kind: kind in ENDING)
    moments = [_moment(rng, early=early or "tool hung" in kinds) for _ in kinds]
    moments.sort(key=lambda moment: moment.order)
    return tuple(
        Fault(
            kind,
            moment,
            rng.uniform(0, _JITTER_SECONDS),
            rng.randrange(60),
            rng.uniform(*_HOLD_SECONDS.get(kind, (0.0, 0.0))),
            rng.choice(get_args(After) if number == len(kinds) else _GOING_ON),
        )
        for number, (kind, moment) in enumerate(zip(kinds, moments, strict=True), 1)
    )


def _moment(rng: random.Random, *, early: bool) -> Moment:
    if early:  # while there are tools, and hosts, and work
        return Moment("work", rng.uniform(0.0, 0.6))
    [phase] = rng.choices(_PHASES, _PHASE_WEIGHTS)
    return Moment(phase, rng.uniform(0, _MOST[phase]))
