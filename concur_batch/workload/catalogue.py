"""The catalogue of GPUs and models, read from simulator/catalogue.toml; and models from a config.json."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import concur_batch.simulator
from concur_batch.simulator.hardware import Calibration, Deployment, Gpu, KvDtype, MemoryRules, Node
from concur_batch.simulator.shape import ModelShape, ShapeError
from concur_batch.workload.explain import one_of

CATALOGUE = Path(concur_batch.simulator.__file__).parent / "catalogue.toml"


class CatalogueError(ValueError):
    """A GPU or model that is not known, or whose config.json cannot be used; one line, with the mend."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the file holds; `models` are config.json's, by name. Of the calibrated constants `calibration` are
    the typical ones, `paper` those that were fitted to the CONCUR paper's figures."""

    gpus: Mapping[str, Gpu]
    models: Mapping[str, Mapping[str, Any]]
    node: Node
    rules: MemoryRules
    calibration: Calibration
    paper: Calibration

    def gpu(self, name: str) -> Gpu:
        """Raises CatalogueError with the known ones."""
        if name not in self.gpus:
            raise CatalogueError(f"there is no GPU {name!r} in the catalogue; {one_of(name, self.gpus)}")
        return self.gpus[name]

    def model(self, name: str) -> ModelShape:
        """One of the catalogue, or that of a config.json, or of the directory that holds one. Raises CatalogueError."""
        try:
            return ModelShape.from_config(self.models[name] if name in self.models else self._read(name))
        except ShapeError as error:
            mend = "give a model of the catalogue, or another config.json"
            raise CatalogueError(f"the model {name} cannot be simulated: {error}; {mend}") from None

    def deployment(
        self,
        model: str,
        gpu: str,
        *,
        tp: int = 1,
        nodes: int = 1,
        mem_fraction: float | None = None,
        kv_dtype: KvDtype = "bf16",
        chunked_prefill_tokens: int | None = None,
        as_paper: bool = False,
    ) -> Deployment:
        """A model on GPUs, both by name. Raises CatalogueError, and DoesNotFit where they do not go together."""
        return Deployment(
            model=self.model(model),
            gpu=self.gpu(gpu),
            node=self.node,
            rules=self.rules,
            calibration=self.paper if as_paper else self.calibration,
            tp=tp,
            nodes=nodes,
            mem_fraction=mem_fraction,
            kv_dtype=kv_dtype,
            chunked_prefill_tokens=chunked_prefill_tokens,
            name=model if model in self.models else Path(model).parent.name if model.endswith(".json") else model,
        )

    def _read(self, name: str) -> Any:
        path = Path(name)
        path = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(path.read_bytes())
        except OSError:
            known = ", ".join(self.models)
            mend = f"give one of {known}, or the path of a config.json"
            raise CatalogueError(f"there is no model {name!r} in the catalogue, and no such file; {mend}") from None
        except ValueError as error:
            raise CatalogueError(f"{path} is no JSON: {error}; give a model's config.json") from None
        if not isinstance(config, dict):
            raise CatalogueError(f"{path} is no JSON object; give a model's config.json")
        return config


@cache
def load_catalogue(path: Path = CATALOGUE) -> Catalogue:
    """Read the file. Raises CatalogueError where an entry is missing, unknown or out of bounds."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        calibrated = tables["calibrated"].items()
        return Catalogue(
            gpus={name: Gpu(**gpu) for name, gpu in tables["gpus"].items()},
            models=tables["models"],
            node=Node(**tables["node"]),
            rules=MemoryRules(**tables["sglang"]),
            calibration=Calibration(**{name: entry["value"] for name, entry in calibrated}),
            paper=Calibration(**{name: entry.get("paper", entry["value"]) for name, entry in calibrated}),
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CatalogueError(f"{path.name} cannot be used: {reason}; mend the entry") from None
