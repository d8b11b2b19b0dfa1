"""A model's sizes, as they follow from its config.json on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# An embedding, norms and routers stay in bf16 where the linear layers are quantized.
BF16_BYTES = 2


class ShapeError(ValueError):
    """A config.json that does not tell the sizes, or a model that the simulator does not know; one line."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: in `layers` layers, `active` of `count` experts for each token, and the shared ones for
    all. Sizes are the intermediate ones."""

    layers: int
    count: int
    active: int
    size: int
    shared_size: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: per token one compressed vector for all heads is cached. `query_rank` None: queries
    are not compressed."""

    query_rank: int | None
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of gated MLPs. `weight_bytes` are those of a parameter of its linear layers."""

    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool
    context_tokens: int
    weight_bytes: float
    experts: Experts | None = None
    latent: Latent | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Of a config.json, of which a multimodal one's `text_config` counts. Raises ShapeError."""
        text = {**config, **config.get("text_config", {})}
        if any("linear" in str(kind) or "mamba" in str(kind) for kind in text.get("layer_types") or ()):
            raise ShapeError("some of its layers keep a state instead of a KV cache, which the simulator does not know")
        heads, hidden_size = _count(text, "num_attention_heads"), _count(text, "hidden_size")
        layers = _count(text, "num_hidden_layers")
        experts = _experts(text, layers)
        return cls(
            layers=layers,
            hidden_size=hidden_size,
            heads=heads,
            kv_heads=_count(text, "num_key_value_heads", default=heads),
            head_dim=_count(text, "head_dim", default=hidden_size // heads),
            intermediate_size=_count(text, "intermediate_size", default=experts.size if experts else None),
            vocab_size=_count(text, "vocab_size"),
            tied_embeddings=bool(text.get("tie_word_embeddings", False)),
            context_tokens=_count(text, "max_position_embeddings"),
            weight_bytes=_weight_bytes(text),
            experts=experts,
            latent=_latent(text),
        )

    @property
    def replicated_parameters(self) -> int:
        """Of the linear layers, what every tensor-parallel rank has whole: the compression of latent attention."""
        if self.latent is None:
            return 0
        compressed = self.latent.rank + self.latent.rope_dim + (self.latent.query_rank or 0)
        return self.layers * self.hidden_size * compressed

    @property
    def dense_parameters(self) -> int:
        """Of the linear layers, what every token goes through: attention, dense MLPs, shared experts, routers."""
        moe_layers = self.experts.layers if self.experts else 0
        mlp = 3 * self.hidden_size * self.intermediate_size * (self.layers - moe_layers)
        if self.experts is not None:
            mlp += self.hidden_size * (3 * self.experts.shared_size + self.experts.count) * moe_layers
        return self.layers * self._attention_parameters() + mlp

    @property
    def expert_parameters(self) -> int:
        """All routed experts of all layers."""
        return self.experts.layers * self.experts.count * self._parameters_per_expert() if self.experts else 0

    @property
    def active_expert_parameters(self) -> int:
        """The routed experts that one token goes through, in all layers."""
        return self.experts.layers * self.experts.active * self._parameters_per_expert() if self.experts else 0

    @property
    def head_parameters(self) -> int:
        """The output layer, which is the embedding too where the two are tied."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All of them; norms and biases, some thousandths, left out."""
        embeddings = self.head_parameters * (1 if self.tied_embeddings else 2)
        return self.dense_parameters + self.expert_parameters + embeddings

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token keeps in the KV cache, over all layers and heads, each once."""
        if self.latent is not None:
            return self.layers * (self.latent.rank + self.latent.rope_dim)
        return self.layers * 2 * self.kv_heads * self.head_dim

    @property
    def attention_flops_per_pair(self) -> int:
        """Of a prefill, for a token and one that it attends to: scores and weighted values, over layers and heads."""
        if self.latent is not None:
            dims = self.latent.nope_dim + self.latent.rope_dim + self.latent.value_dim
            return 2 * self.layers * self.heads * dims
        return 4 * self.layers * self.heads * self.head_dim

    @property
    def expansion_flops_per_token(self) -> int:
        """Of a prefill, for each cached token before it: latent attention expands keys and values again. Else 0."""
        if self.latent is None:
            return 0
        return 2 * self.layers * self.latent.rank * self.heads * (self.latent.nope_dim + self.latent.value_dim)

    def _attention_parameters(self) -> int:
        """Of one layer."""
        if self.latent is None:
            return self.hidden_size * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        latent, hidden = self.latent, self.hidden_size
        query = self.heads * (latent.nope_dim + latent.rope_dim)
        queries = hidden * query if latent.query_rank is None else latent.query_rank * (hidden + query)
        keys_values = hidden * (latent.rank + latent.rope_dim)
        keys_values += latent.rank * self.heads * (latent.nope_dim + latent.value_dim)
        return queries + keys_values + self.heads * latent.value_dim * hidden

    def _parameters_per_expert(self) -> int:
        """Of one layer."""
        return 3 * self.hidden_size * self.experts.size if self.experts else 0


def _experts(config: Mapping[str, Any], layers: int) -> Experts | None:
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    name = next((name for name in names if config.get(name)), None)
    if name is None:
        return None
    first = int(config.get("first_k_dense_replace") or 0)
    every = int(config.get("moe_layer_freq") or config.get("decoder_sparse_step") or 1)
    dense = set(config.get("mlp_only_layers") or ())
    # Qwen's step counts layers from one, DeepSeek's from zero; both have 1.
    offset = 1 if config.get("decoder_sparse_step") else 0
    sparse = [layer for layer in range(first, layers) if (layer + offset) % every == 0 and layer not in dense]
    size = _count(config, "moe_intermediate_size", default=config.get("intermediate_size"))
    shared = int(config.get("n_shared_experts") or 0) * size
    return Experts(
        layers=len(sparse),
        count=_count(config, name),
        active=_count(config, "num_experts_per_tok"),
        size=size,
        shared_size=shared or int(config.get("shared_expert_intermediate_size") or 0),
    )


def _latent(config: Mapping[str, Any]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        query_rank=config.get("q_lora_rank") or None,
        rank=_count(config, "kv_lora_rank"),
        nope_dim=_count(config, "qk_nope_head_dim"),
        rope_dim=_count(config, "qk_rope_head_dim"),
        value_dim=_count(config, "v_head_dim"),
    )


def _weight_bytes(config: Mapping[str, Any]) -> float:
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method")
        if method == "fp8":
            return 1.0
        if isinstance(quantization.get("bits"), int):
            return float(quantization["bits"]) / 8
        raise ShapeError(f"quantization {method!r} is not known; the simulator knows fp8, and methods that tell `bits`")
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    known = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0}
    if dtype not in known:
        raise ShapeError(f"dtype {dtype!r} is not known; the simulator knows {', '.join(known)}")
    return known[dtype]


def _count(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise ShapeError(f"its config.json has no `{name}`")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ShapeError(f"its config.json has {name}: {value!r}, which is no whole number above 0")
    return value
