"""A model on GPUs: what fits into their memory, and what its work takes. Pure; the numbers are in catalogue.toml."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.shape import BF16_BYTES, ModelShape

KvDtype = Literal["bf16", "fp8"]

_MIB = 2**20
_GB = 10**9
_TERA = 10**12
_LARGE_MIB = 60 * 1024  # SGLang's bound between small and large GPUs, for the chunk and for what it keeps free
_CONFIG = ConfigDict(extra="forbid")
_KV_BYTES: dict[KvDtype, int] = {"bf16": 2, "fp8": 1}

Above0 = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Least0 = Annotated[float, Field(ge=0)]


class DoesNotFit(ValueError):
    """A deployment that cannot be: its weights are too large, or its ranks do not divide the model; one line."""


@checked(frozen=True, config=_CONFIG)
class Gpu:
    """One GPU. Bandwidths are those of one direction; without `fp8_tflops` fp8 weights are computed in bf16."""

    name: str
    memory_mib: Above0
    memory_gb_per_second: Above0
    bf16_tflops: Above0
    link_gb_per_second: Above0
    host_link_gb_per_second: Above0
    source: str
    fp8_tflops: Above0 | None = None


@checked(frozen=True, config=_CONFIG)
class Node:
    """What the GPUs of a node share: the network, evenly, and the host's memory."""

    gpus: Annotated[int, Field(ge=1)]
    network_gb_per_second: Above0
    host_memory_gb_per_second: Above0
    host_memory_gb: Above0
    source: str


@checked(frozen=True, config=_CONFIG)
class MemoryRules:
    """How SGLang divides memory where it is not told: see the catalogue."""

    reserved_mib: Least0
    reserved_mib_per_chunk_token: Least0
    reserved_mib_per_rank: Least0
    reserved_mib_least: Least0
    host_ratio: Above0
    host_memory_share: Share
    source: str


@checked(frozen=True, config=_CONFIG)
class Calibration:
    """What no specification tells: shares of the peaks that are reached, and overheads. See the catalogue."""

    prefill_efficiency: Share
    attention_efficiency: Share
    memory_efficiency: Share
    link_efficiency: Share
    network_efficiency: Share
    link_latency_seconds: Least0
    network_latency_seconds: Least0
    prefill_seconds_per_layer: Least0
    prefill_overhead_seconds: Least0
    decode_overhead_seconds: Least0
    decode_seconds_per_request: Least0
    host_link_efficiency: Share
    host_memory_efficiency: Share
    context_mib: Least0


@dataclass(frozen=True)
class Deployment:
    """A model on `tp` GPUs, spread evenly over `nodes`: one engine with one KV pool.

    `mem_fraction` is the share of a GPU's memory for weights and KV, None: by SGLang's rule. `chunked_prefill_tokens`
    None: SGLang's for that GPU. Raises DoesNotFit where the ranks do not divide the model's heads, experts' sizes or
    nodes, or the weights leave no room for a KV pool.
    """

    model: ModelShape
    gpu: Gpu
    node: Node
    rules: MemoryRules
    calibration: Calibration
    tp: int = 1
    nodes: int = 1
    mem_fraction: float | None = None
    kv_dtype: KvDtype = "bf16"
    chunked_prefill_tokens: int | None = None
    name: str = field(default="the model")

    def __post_init__(self) -> None:
        if self.tp % self.nodes:
            raise DoesNotFit(f"tp {self.tp} cannot be shared evenly by {self.nodes} nodes")
        if self.ranks_per_node > self.node.gpus:
            raise DoesNotFit(
                f"tp {self.tp} on {self.nodes} node(s) needs {self.ranks_per_node} GPUs a node, which has "
                f"{self.node.gpus}; give more nodes"
            )
        if self.model.heads % self.tp:
            raise DoesNotFit(f"tp {self.tp} does not divide the {self.model.heads} attention heads of {self.name}")
        if self.model.latent is None and max(self.tp, self.model.kv_heads) % min(self.tp, self.model.kv_heads):
            raise DoesNotFit(f"tp {self.tp} and the {self.model.kv_heads} KV heads of {self.name} do not divide")
        if self._pool_bytes < self.kv_bytes_per_token_per_rank:
            lacking = (self.kv_bytes_per_token_per_rank - self._pool_bytes) / _GB
            raise DoesNotFit(
                f"{self.name} does not fit on {self.tp} x {self.gpu.name}: {lacking:,.1f} GB a GPU are lacking "
                f"({self.weight_bytes_per_rank / _GB:,.1f} GB of weights a GPU, and {self.static_share:.3f} of its "
                f"{self.gpu.memory_mib * _MIB / _GB:,.1f} GB for them and the KV pool)"
            )

    @property
    def ranks_per_node(self) -> int:
        return self.tp // self.nodes

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens that a prefill step computes at most: what is given, or SGLang's for such a GPU."""
        return self.chunked_prefill_tokens or (8192 if self.gpu.memory_mib > _LARGE_MIB else 4096)

    @property
    def static_share(self) -> float:
        """Of a GPU's memory, for weights and KV: `mem_fraction`, or what SGLang's rule gives."""
        if self.mem_fraction is not None:
            return self.mem_fraction
        rules = self.rules
        reserved = rules.reserved_mib + rules.reserved_mib_per_chunk_token * self.chunk_tokens
        reserved += rules.reserved_mib_per_rank * self.tp
        if self.gpu.memory_mib > _LARGE_MIB:
            reserved = max(reserved, rules.reserved_mib_least)
        return 1 - reserved / self.gpu.memory_mib

    @property
    def weight_bytes_per_rank(self) -> float:
        """Linear layers at the model's own width, the embedding and the output layer in bf16."""
        model = self.model
        embeddings = model.parameters - model.dense_parameters - model.expert_parameters
        sharded_bytes = model.weight_bytes * model.expert_parameters + BF16_BYTES * embeddings
        return model.weight_bytes * self._dense_per_rank + sharded_bytes / self.tp

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the whole model, each value once."""
        return self.model.kv_values_per_token * _KV_BYTES[self.kv_dtype]

    @property
    def kv_bytes_per_token_per_rank(self) -> float:
        """A rank has its share of the KV heads, at least one; latent KV it has whole."""
        ranks = 1 if self.model.latent is not None else min(self.tp, self.model.kv_heads)
        return self.kv_bytes_per_token / ranks

    @property
    def pool_tokens(self) -> int:
        """That the KV pool holds."""
        return int(self._pool_bytes / self.kv_bytes_per_token_per_rank)

    def host_pool_tokens(
        self, ratio: float | None = None, size_gb: float | None = None, device_tokens: int | None = None
    ) -> int:
        """That HiCache's pool in host memory holds: `size_gb` a rank, or `ratio` (None: SGLang's) times
        `device_tokens` (None: `pool_tokens`); cut to what fits the host's memory."""
        room_bytes = self.node.host_memory_gb * _GB * self.rules.host_memory_share / self.ranks_per_node
        room_tokens = room_bytes / self.kv_bytes_per_token_per_rank
        if size_gb is not None:
            return int(min(size_gb * _GB / self.kv_bytes_per_token_per_rank, room_tokens))
        wanted = (device_tokens or self.pool_tokens) * (self.rules.host_ratio if ratio is None else ratio)
        return int(min(wanted, room_tokens))

    def cost_model(self) -> CostModel:
        """What a step takes on these GPUs. Each rank does its share, and all wait for the all-reduces: two a layer."""
        model, calibration = self.model, self.calibration
        host = self._host_seconds_per_token
        latency_seconds = self._all_reduce_latency_seconds
        head_bytes = BF16_BYTES * model.head_parameters / self.tp
        weights_seconds = (model.weight_bytes * self._dense_per_rank + head_bytes) / self._read_bytes_per_second
        return CostModel(
            prefill_seconds_per_token=self._linear_seconds_per_token + self._all_reduce_seconds_per_token,
            prefill_seconds_per_token_pair=model.attention_flops_per_pair / self.tp / self._attention_flops,
            prefill_seconds_per_cached_token=self._kv_read_seconds
            + model.expansion_flops_per_token / self.tp / self._linear_flops,
            prefill_step_seconds=calibration.prefill_overhead_seconds
            + calibration.prefill_seconds_per_layer * model.layers
            + latency_seconds,
            decode_step_seconds=calibration.decode_overhead_seconds + latency_seconds + weights_seconds,
            decode_seconds_per_request=calibration.decode_seconds_per_request + self._all_reduce_seconds_per_token,
            decode_seconds_per_kv_token=self._kv_read_seconds,
            weights_seconds=weights_seconds,
            experts_seconds=model.weight_bytes * model.expert_parameters / self.tp / self._read_bytes_per_second,
            expert_share=model.experts.active / model.experts.count if model.experts else 0.0,
            load_seconds_per_token=host,
            store_seconds_per_token=host,
        )

    @property
    def _pool_bytes(self) -> float:
        """SGLang takes the share of what is free before the weights are loaded."""
        free_bytes = (self.gpu.memory_mib - self.calibration.context_mib) * _MIB
        return free_bytes * self.static_share - self.weight_bytes_per_rank

    @property
    def _dense_per_rank(self) -> float:
        """Parameters of the linear layers that every token goes through."""
        replicated = self.model.replicated_parameters
        return (self.model.dense_parameters - replicated) / self.tp + replicated

    @property
    def _linear_flops(self) -> float:
        """FLOP/s of a rank in linear layers."""
        tflops = self.gpu.fp8_tflops if self.model.weight_bytes == 1 and self.gpu.fp8_tflops else self.gpu.bf16_tflops
        return tflops * _TERA * self.calibration.prefill_efficiency

    @property
    def _attention_flops(self) -> float:
        return self.gpu.bf16_tflops * _TERA * self.calibration.attention_efficiency

    @property
    def _linear_seconds_per_token(self) -> float:
        active = self._dense_per_rank + self.model.active_expert_parameters / self.tp
        return 2 * active / self._linear_flops

    @property
    def _read_bytes_per_second(self) -> float:
        return self.gpu.memory_gb_per_second * _GB * self.calibration.memory_efficiency

    @property
    def _kv_read_seconds(self) -> float:
        """Reading one token's KV from the GPU's memory, each rank its own."""
        return self.kv_bytes_per_token_per_rank / self._read_bytes_per_second

    @property
    def _all_reduce_seconds_per_token(self) -> float:
        """By bandwidth: within the node a ring moves 2 (g - 1) / g of the message a rank, for g ranks; over n nodes
        each rank then moves 2 (n - 1) / n of its g-th part."""
        message_bytes = 2 * self.model.layers * self.model.hidden_size * BF16_BYTES
        ranks, nodes = self.ranks_per_node, self.nodes
        link = self.gpu.link_gb_per_second * _GB * self.calibration.link_efficiency
        network = self.node.network_gb_per_second / self.node.gpus * _GB * self.calibration.network_efficiency
        return message_bytes * (2 * (ranks - 1) / ranks / link + 2 * (nodes - 1) / nodes / ranks / network)

    @property
    def _all_reduce_latency_seconds(self) -> float:
        """Of all layers together, however small the messages."""
        within = self.calibration.link_latency_seconds if self.ranks_per_node > 1 else 0.0
        across = self.calibration.network_latency_seconds if self.nodes > 1 else 0.0
        return 2 * self.model.layers * (within + across)

    @property
    def _host_seconds_per_token(self) -> float:
        """Moving one token's KV to or from the host: over each rank's own link, or through the host's memory that the
        ranks of a node share, whichever takes longer."""
        link = self.gpu.host_link_gb_per_second * _GB * self.calibration.host_link_efficiency
        memory = self.node.host_memory_gb_per_second * _GB * self.calibration.host_memory_efficiency
        return self.kv_bytes_per_token_per_rank * max(1 / link, self.ranks_per_node / memory)
