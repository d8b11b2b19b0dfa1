"""The engines that `concur simulate` plays a workload on: sizes and costs, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from concur_batch.simulator.config import EngineConfig, HiCacheConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.hardware import Deployment, DoesNotFit
from concur_batch.workload.catalogue import Catalogue, CatalogueError, load_catalogue
from concur_batch.workload.errors import InputError
from concur_batch.workload.loading import Loaded
from concur_batch.workload.schema import (
    HiCache,
    Launch,
    LaunchedEngine,
    SglangEngine,
    SglangLaunch,
    Simulate,
    SimulatedEngine,
)
from concur_batch.workload.simulated import cost_model, engine_config


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run's manifest tells of the engine that it ran on: tokens by pool, where they are known; and the hardware
    that its workload names, where it does."""

    pools: Mapping[str, int | None]
    page_size: int
    context_tokens: int | None
    section: Simulate | None = None

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Recorded:
        """Of a run that never reached its engine there is nothing to tell: one pool of unknown size."""
        told = manifest.get("engine")
        engine = told[0] if isinstance(told, list) and told else {}
        return cls(
            pools=manifest.get("pools") or {"0": None},
            page_size=engine.get("page_size") or 1,
            context_tokens=engine.get("context_tokens"),
            section=Simulate.model_validate(section) if (section := manifest["workload"].get("simulate")) else None,
        )

    def pools_on(self, section: Simulate) -> dict[str, int]:
        """Its pools, if all are known and the section names just the hardware that the run's own workload named."""
        known = {name: tokens for name, tokens in self.pools.items() if tokens is not None}
        same = self.section is not None and _place(self.section) == _place(section)
        return known if same and len(known) == len(self.pools) and section.replicas is None else {}


@dataclass(frozen=True, slots=True)
class Hardware:
    """Engines by the names of their KV pools, all with the same costs; what they are, in words; and how many GPUs, None
    where none are named."""

    engines: Mapping[str, EngineConfig]
    cost: CostModel
    told: str
    gpus: int | None = None

    @property
    def pool_tokens(self) -> tuple[int, ...]:
        """By pool."""
        return tuple(engine.pool_tokens for engine in self.engines.values())

    @property
    def has_host_tier(self) -> bool:
        return any(engine.hicache is not None for engine in self.engines.values())


def has_costs(loaded: Loaded) -> bool:
    """Whether the workload says what the engine's work takes: it names a GPU, or its engine is simulated."""
    section = loaded.workload.simulate
    return isinstance(loaded.workload.engine, SimulatedEngine) or (section is not None and section.gpu is not None)


def hardware_of(
    loaded: Loaded,
    recorded: Recorded | None = None,
    fitted: CostModel | None = None,
    catalogue: Catalogue | None = None,
) -> Hardware:
    """The workload's hardware, by its `simulate` section.

    A GPU that is named there decides sizes and costs; the pools are those of a `recorded` run where its own workload
    named the same. Else a simulated engine has its own, and the engine of a recorded run has the sizes that its
    manifest tells and the costs that were `fitted` to it. What the section says of pools and cache goes before all of
    these. `catalogue` None: the package's. Raises InputError with what is missing or does not go together.
    """
    workload, section = loaded.workload, loaded.workload.simulate or Simulate()
    try:
        if section.gpu is not None:
            return _deployed(loaded, section, catalogue or load_catalogue(), recorded)
        if isinstance(workload.engine, SimulatedEngine):
            return _own(loaded, workload.engine, section)
        if recorded is not None and fitted is not None:
            return _as_recorded(loaded, recorded, section, fitted)
        known = ", ".join(load_catalogue().gpus)
        mend = f"add `simulate: {{gpu: …}}`, one of {known}, or --from a run whose turns tell the costs"
        raise CatalogueError(f"no hardware is named; {mend}")
    except (CatalogueError, DoesNotFit) as error:
        reason, _, mend = str(error).partition("; ")
        mend = mend or "give more or larger GPUs, another tp, or a larger mem_fraction"
        raise InputError([loaded.source.problem(("simulate",), reason, mend)]) from None
    except ValidationError as error:
        reason = str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")
        raise InputError([loaded.source.problem(("simulate",), reason, "give a larger pool")]) from None


def _deployed(loaded: Loaded, section: Simulate, catalogue: Catalogue, recorded: Recorded | None) -> Hardware:
    launch = _launch_of(loaded)
    assert section.gpu is not None, "it is named"
    # Launched nodes are those of all dp ranks together.
    launched_nodes = -(-launch.nodes // launch.dp) if launch is not None else 1
    deployment = catalogue.deployment(
        _model_name(loaded, section, launch, catalogue),
        section.gpu,
        tp=section.tp or (launch.tp if launch is not None else 1),
        nodes=section.nodes or launched_nodes,
        mem_fraction=section.mem_fraction,
        kv_dtype=section.kv_dtype,
        as_paper=section.calibration == "paper",
    )
    names = _pool_names(section.replicas or _replicas_of(loaded), launch.dp if launch is not None else 1)
    pools = recorded.pools_on(section) if recorded is not None else {}
    pools = pools or dict.fromkeys(names, deployment.pool_tokens)
    config = EngineConfig(
        pool_tokens=deployment.pool_tokens,
        page_size=section.page_size or (recorded.page_size if recorded is not None else 1),
        context_tokens=deployment.model.context_tokens,
        chunked_prefill_tokens=deployment.chunk_tokens,
        eviction=section.eviction,
        schedule=section.schedule,
        sessions=_has_sessions(loaded, section),
    )
    hicache = _hicache_of(loaded, section)
    engines = {}
    for name, own_tokens in pools.items():
        tokens = section.pool_tokens or own_tokens
        tier = _host_tier(hicache, deployment, tokens) if hicache is not None else None
        engines[name] = replace(config, pool_tokens=tokens, hicache=tier)
    told = f"{deployment.name} on {deployment.tp} x {deployment.gpu.name}"
    told += f" ({deployment.nodes} nodes)" if deployment.nodes > 1 else ""
    told = _told(told, list(engines.values()), len(pools))
    return Hardware(engines, deployment.cost_model(), told, deployment.tp * len(pools))


def _own(loaded: Loaded, engine: SimulatedEngine, section: Simulate) -> Hardware:
    """Of a simulated engine, whose clock may run faster than that of the tools and of control."""
    config = _changed(engine_config(engine), loaded, section, section.hicache)
    cost = cost_model(engine)
    scaled = {name: seconds / engine.time_scale for name, seconds in vars(cost).items() if name in _SECONDS}
    pools = _pool_names(section.replicas or engine.replicas, engine.dp_size)
    told = _told("the workload's own simulated engine", [config], len(pools))
    return Hardware(dict.fromkeys(pools, config), replace(cost, **scaled), told)


def _as_recorded(loaded: Loaded, recorded: Recorded, section: Simulate, fitted: CostModel) -> Hardware:
    hicache = _hicache_of(loaded, section)
    engines = {}
    for name, tokens in recorded.pools.items():
        pool_tokens = section.pool_tokens or tokens
        if pool_tokens is None:
            raise CatalogueError("the run does not tell the size of its KV pool; add simulate.pool_tokens")
        config = EngineConfig(pool_tokens=pool_tokens, page_size=recorded.page_size)
        if recorded.context_tokens is not None:
            config = replace(config, context_tokens=recorded.context_tokens)
        engines[name] = _changed(config, loaded, section, hicache)
    if section.replicas is not None:
        engines = dict.fromkeys(_pool_names(section.replicas, 1), next(iter(engines.values())))
    told = _told("the run's engine, costs fitted to its turns", list(engines.values()), len(engines))
    return Hardware(engines, fitted, told)


def _changed(config: EngineConfig, loaded: Loaded, section: Simulate, hicache: HiCache | None) -> EngineConfig:
    """By what the section says of an engine whose GPU is not named."""
    if hicache is not None:
        raise CatalogueError("what HiCache takes depends on the link to the host's memory; add simulate.gpu")
    return replace(
        config,
        pool_tokens=section.pool_tokens or config.pool_tokens,
        page_size=section.page_size or config.page_size,
        eviction=section.eviction,
        schedule=section.schedule,
        sessions=_has_sessions(loaded, section),
    )


def _host_tier(hicache: HiCache, deployment: Deployment, pool_tokens: int) -> HiCacheConfig:
    tokens = deployment.host_pool_tokens(hicache.ratio, hicache.size_gb, pool_tokens)
    return HiCacheConfig(host_tokens=max(1, tokens), write_policy=hicache.write_policy)


def _place(section: Simulate) -> tuple[object, ...]:
    """What decides how large a pool is."""
    return section.gpu, section.model, section.tp, section.nodes, section.mem_fraction, section.kv_dtype


def _hicache_of(loaded: Loaded, section: Simulate) -> HiCache | None:
    launch = _launch_of(loaded)
    return section.hicache or (launch.hicache if isinstance(launch, SglangLaunch) else None)


def _has_sessions(loaded: Loaded, section: Simulate) -> bool:
    engine = loaded.workload.engine
    if section.sessions is not None:
        return section.sessions
    return isinstance(engine, SglangEngine | SimulatedEngine) and engine.sessions


def _launch_of(loaded: Loaded) -> Launch | None:
    engine = loaded.workload.engine
    return engine.launch if isinstance(engine, LaunchedEngine) else None


def _replicas_of(loaded: Loaded) -> int:
    engine = loaded.workload.engine
    if isinstance(engine, SimulatedEngine):
        return engine.replicas
    launch = _launch_of(loaded)
    return launch.replicas if launch is not None else max(1, len(engine.urls))


def _model_name(loaded: Loaded, section: Simulate, launch: Launch | None, catalogue: Catalogue) -> str:
    """What to look up in the catalogue: a name of it, or a path."""
    if section.model is not None:
        return section.model if section.model in catalogue.models else str(loaded.base_dir / section.model)
    if launch is not None and (launch.model / "config.json").is_file():
        return str(launch.model)
    names = [loaded.workload.model.name, launch.model.name if launch is not None else ""]
    for name in names:
        if (known := name.rpartition("/")[2].lower()) in catalogue.models:
            return known
    reason = f"which model it is cannot be told from `model.name`, {loaded.workload.model.name}"
    raise CatalogueError(f"{reason}; add simulate.model: {', '.join(catalogue.models)}, or the path of a config.json")


def _pool_names(replicas: int, ranks: int) -> list[str]:
    """As the pools of a run are named: by replica, and by rank where there are several."""
    return [f"{replica}.{rank}" if ranks > 1 else str(replica) for replica in range(replicas) for rank in range(ranks)]


def _told(what: str, configs: list[EngineConfig], pools: int) -> str:
    """A line about them: `qwen3-32b on 2 x H100 80 GB SXM, KV pool 291,193 tokens`."""
    sizes = sorted({config.pool_tokens for config in configs})
    size = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    told = f"{what}, {f'{pools} KV pools' if pools > 1 else 'KV pool'} of {size} tokens"
    told += ", session tags" if configs[0].sessions else ""
    host = configs[0].hicache
    return told + (f", HiCache of {host.host_tokens:,} tokens ({host.write_policy})" if host is not None else "")


_SECONDS = {name for name in CostModel.__dataclass_fields__ if "seconds" in name}
