"""What `concur simulate` compares: settings of a workload, each with its hardware and its load."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console
from rich.progress import track

from concur_batch.agent.spec import AgentSpec
from concur_batch.bench.fit import COLUMNS, Fit, fit_costs
from concur_batch.bench.forecast import Forecast, Outcome, RecordedRun
from concur_batch.bench.plan import EnginePlan
from concur_batch.bench.plans import Load, drawn_load, replayed_load
from concur_batch.bench.prediction import Prediction
from concur_batch.bench.simulations import Simulation, simulate_all
from concur_batch.bench.variation import Variation, perturbed, seeded
from concur_batch.driver.replay import recorded_agents
from concur_batch.foreign.file import read_agents
from concur_batch.trace.reading import Run
from concur_batch.workload.drawn import drawn_task
from concur_batch.workload.errors import InputError, Problem
from concur_batch.workload.hardware import Hardware, Recorded, hardware_of, has_costs
from concur_batch.workload.loading import SIMULATED, Loaded, load, load_replay, load_tasks
from concur_batch.workload.schema import Trajectories
from concur_batch.workload.seeds import agent_id
from concur_batch.workload.sweep import POLICIES, Setting, Sweep, make_settings


@dataclass(frozen=True, slots=True)
class Case:
    """A setting, the workload that it makes, and what that is simulated on."""

    setting: Setting
    loaded: Loaded
    hardware: Hardware


@dataclass(frozen=True)
class Source:
    """Where all settings of a study come from: a workload file, or a recorded run, or both; `run` is replayed, and
    may be a file of trajectories."""

    file: Path | None
    run: Path | None
    overrides: tuple[str, ...]

    def read(self, overrides: Sequence[str]) -> Loaded:
        """The workload under more overrides. Raises InputError."""
        given = [*self.overrides, *overrides]
        if self.run is not None:
            return load_replay(self.file, self.run, given, SIMULATED, "--from")
        assert self.file is not None, "one of the two is given"
        return load(self.file, given, SIMULATED)


@dataclass(frozen=True)
class Recording:
    """A recorded run, each part of it read when it is needed first."""

    run: Run

    @cached_property
    def agents(self) -> tuple[list[AgentSpec], int]:
        """Those to replay, and how many are not. Raises TraceError."""
        return recorded_agents(self.run)

    @cached_property
    def fit(self) -> Fit:
        """Raises CannotFit and TraceError."""
        return fit_costs(self.run.table("turns", columns=list(COLUMNS)).to_pylist())

    @property
    def host_tokens(self) -> int:
        """That its turns found in host memory."""
        return pc.sum(self.run.table("turns", columns=["cached_host_tokens"])["cached_host_tokens"]).as_py() or 0

    @property
    def seconds(self) -> float:
        """From the first agent's start to the last one's end."""
        final = self.run.agents_final()
        return float(pc.max(final["ended_seconds"]).as_py() - pc.min(final["started_seconds"]).as_py())


@dataclass(frozen=True)
class Study:
    """The cases; `recording` is what they replay, None where their loads are drawn."""

    cases: tuple[Case, ...]
    recording: Recording | None
    _loads: dict[tuple[int, str], Load] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source, policies: Sequence[str], sweeps: Sequence[Sweep]) -> Study:
        """Every policy (none given: the workload's own, and none) under every combination of the swept values.

        Raises InputError with what is wrong with any of them, CannotFit where a run's costs cannot be told, TraceError.
        """
        policies = policies or list(dict.fromkeys([source.read(()).workload.control.policy, "none"]))
        for sweep in sweeps:
            if not any(sweep.concerns(policy) for policy in policies):
                reason, mend = "no policy of these has the key", "give one that has it as --policy"
                raise InputError([Problem(f"--sweep {sweep.key}", None, "", reason, mend)])
        settings = make_settings(policies, sweeps)
        read = [source.read(setting.overrides) for setting in settings]
        replay = read[0].workload.replay
        recording = Recording(Run(replay.run)) if replay is not None and replay.run is not None else None
        cases = [
            Case(setting, loaded, _hardware(loaded, recording)) for setting, loaded in zip(settings, read, strict=True)
        ]
        return cls(tuple(cases), recording)

    @property
    def drawn(self) -> bool:
        """Whether another seed would draw another load."""
        replay = self.cases[0].loaded.workload.replay
        return replay is None or replay.synthetic is not None

    def simulated(self, seeds: int) -> Outcome:
        """Simulate every case under every variation. Raises InputError, and RuntimeError where agents wait for ever."""
        if self.drawn:
            variations, of = seeded(seeds), f"{seeds} {'seed' if seeds == 1 else 'seeds'}"
        else:
            variations = perturbed(host_link=any(case.hardware.has_host_tier for case in self.cases))
            of = f"{len(variations)} variations (as recorded, and tool times and costs ±20 % one at a time)"
        simulations = [self._simulation(case, variation) for case in self.cases for variation in variations]
        found: Iterable[Prediction] = simulate_all(simulations)
        if sys.stderr.isatty():
            found = track(found, "simulating", len(simulations), console=Console(stderr=True), transient=True)
        predictions = list(found)
        count = len(variations)
        forecasts = tuple(
            Forecast(
                case.setting.name,
                case.hardware.told,
                tuple(predictions[number * count : (number + 1) * count]),
                gpus=case.hardware.gpus,
                has_host_tier=case.hardware.has_host_tier,
            )
            for number, case in enumerate(self.cases)
        )
        return Outcome(forecasts, of, tuple(each.name for each in variations), self._recorded(forecasts))

    def _simulation(self, case: Case, variation: Variation) -> Simulation:
        cost = variation.of_cost(case.hardware.cost)
        engines = {name: EnginePlan(config, cost) for name, config in case.hardware.engines.items()}
        load = variation.of_load(partial(self._load, case.loaded))
        return Simulation(load, case.loaded.workload.control, engines)

    def _load(self, loaded: Loaded, seed: int) -> Load:
        """What the agents do; the same for settings that do not change it."""
        workload = loaded.workload
        section = workload.simulate.load if workload.simulate is not None else None
        told = [part.model_dump_json() for part in (workload.tasks, workload.replay, section) if part is not None]
        key = (seed, "".join(told))
        if key not in self._loads:
            self._loads[key] = self._make_load(loaded, seed)
        return self._loads[key]

    def _make_load(self, loaded: Loaded, seed: int) -> Load:
        workload = loaded.workload
        replay = workload.replay
        if self.recording is not None:
            agents, _ = self.recording.agents
            assert replay is not None, "it is what is recorded"
            if not agents:
                reason = f"no agent of {self.recording.run.path.name} came to an end of its own"
                mend = "give a run whose agents have ended"
                raise InputError([loaded.source.problem(("replay", "run"), reason, mend)])
            return replayed_load(agents[: replay.limit])
        if replay is not None and replay.file is not None:
            return replayed_load(read_agents(replay.file)[: replay.limit])
        if replay is not None:
            assert replay.synthetic is not None, "a replay has one source"
            names = [agent_id(drawn_task(number), 0) for number in range(replay.synthetic.agents)]
            return drawn_load(_reseeded(replay.synthetic, seed), names[: replay.limit])
        assert workload.tasks is not None, "a workload has tasks or a replay"
        if workload.simulate is None or workload.simulate.load is None:
            reason = "the tasks do not tell how long their agents' turns are"
            mend = "add `simulate: {load: …}` with lengths, or take those of a recorded run: --from RUN"
            raise InputError([loaded.source.problem(("simulate", "load"), reason, mend)])
        tasks = load_tasks(loaded)
        pairs = [(agent_id(task.id, sample), task.id) for sample in range(workload.tasks.samples) for task in tasks]
        section = _reseeded(workload.simulate.load, seed)
        return drawn_load(section, [agent for agent, _ in pairs], [task for _, task in pairs])

    def _recorded(self, forecasts: Sequence[Forecast]) -> RecordedRun | None:
        """How the recorded run itself went, beside its own policy on pools of its size, if that is simulated."""
        if self.recording is None:
            return None
        manifest = self.recording.run.manifest
        told = manifest["workload"]["control"]
        control = POLICIES[told["policy"]].model_validate(told)  # with the defaults of keys that are newer than the run
        pools = tuple(tokens for tokens in Recorded.of(manifest).pools.values() if tokens is not None)
        own = [
            forecast
            for case, forecast in zip(self.cases, forecasts, strict=True)
            if case.loaded.workload.control == control and case.hardware.pool_tokens == pools
        ]
        fitted = not has_costs(self.cases[0].loaded)
        return RecordedRun(
            name=manifest["run"],
            seconds=self.recording.seconds,
            policy=told["policy"],
            pools=pools,
            own=own[0] if own else None,
            left_out=self.recording.agents[1],
            host_tokens=self.recording.host_tokens,
            fit=self.recording.fit if fitted else None,
        )


def _hardware(loaded: Loaded, recording: Recording | None) -> Hardware:
    if recording is None:
        return hardware_of(loaded)
    fitted = None if has_costs(loaded) else recording.fit.cost
    return hardware_of(loaded, Recorded.of(recording.run.manifest), fitted)


def _reseeded(section: Trajectories, seed: int) -> Trajectories:
    return section.model_copy(update={"seed": section.seed + seed})
