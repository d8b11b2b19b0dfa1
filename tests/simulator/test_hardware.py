"""Models on GPUs: sizes against published figures, and how memory and time change with the deployment."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.hardware import Calibration, Deployment, DoesNotFit
from concur_batch.simulator.shape import ModelShape, ShapeError
from concur_batch.workload.catalogue import CATALOGUE, CatalogueError, load_catalogue

# The calibrated values may be fitted anew; these stay.
CALIBRATION = Calibration(
    prefill_efficiency=0.5, attention_efficiency=0.4, memory_efficiency=0.8, link_efficiency=0.7,
    network_efficiency=0.7, link_latency_seconds=1e-5, network_latency_seconds=3e-5, prefill_seconds_per_layer=5e-5,
    prefill_overhead_seconds=2e-3, decode_overhead_seconds=1e-3, decode_seconds_per_request=1e-5,
    host_link_efficiency=0.8, host_memory_efficiency=0.5, context_mib=1024,
)  # fmt: skip
KNOWN = dataclasses.replace(load_catalogue(), calibration=CALIBRATION)
deployed = KNOWN.deployment
# By their config.json on the hub.
MIXTRAL = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_30B_A3B = {
    "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def shape(name: str, **changes: Any) -> ModelShape:
    return ModelShape.from_config({**KNOWN.models[name], **changes})


# Sizes


@pytest.mark.parametrize(
    ("config", "billions", "active_billions"),
    [
        (KNOWN.models["qwen3-32b"], 32.8, 32.8),  # model card: 32.8B
        (KNOWN.models["qwen3-8b"], 8.2, 8.2),  # model card: 8.2B
        (KNOWN.models["deepseek-v3"], 671, 37),  # technical report (arXiv 2412.19437): 671B, 37B activated
        (MIXTRAL, 46.7, 12.9),  # Mixtral of experts (arXiv 2401.04088): 47B, 13B active
        (QWEN3_30B_A3B, 30.5, 3.3),  # model card: 30.5B, 3.3B activated
    ],
)
def test_parameters_are_the_published_ones(config: dict[str, Any], billions: float, active_billions: float) -> None:
    model = ModelShape.from_config(config)
    active = model.parameters - model.expert_parameters + model.active_expert_parameters
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.003)
    assert active / 1e9 == pytest.approx(active_billions, rel=0.03)


def test_kv_of_a_token() -> None:
    assert deployed("qwen3-32b", "h100", tp=2).kv_bytes_per_token == 64 * 2 * 8 * 128 * 2 == 262_144
    assert deployed("deepseek-v3", "h100", tp=16, nodes=2).kv_bytes_per_token == 61 * 576 * 2 == 70_272


def test_attention_of_a_pair_of_tokens() -> None:
    # Scores and weighted values, 2 FLOP a multiplication: latent attention has keys of 192 and values of 128.
    assert shape("qwen3-32b").attention_flops_per_pair == 64 * 64 * (128 + 128) * 2
    assert shape("deepseek-v3").attention_flops_per_pair == 61 * 128 * (192 + 128) * 2


def test_a_rank_holds_its_share_of_the_heads_and_latent_kv_whole() -> None:
    per_rank = [deployed("qwen3-32b", "h100", tp=tp).kv_bytes_per_token_per_rank for tp in (2, 8)]
    assert per_rank == [131_072, 32_768]
    sixteen = deployed("qwen3-32b", "h100", tp=16, nodes=2)  # 8 KV heads: each on two ranks
    assert sixteen.kv_bytes_per_token_per_rank == 32_768
    assert deployed("deepseek-v3", "h100", tp=16, nodes=2).kv_bytes_per_token_per_rank == 70_272


def test_quantized_weights_and_kv() -> None:
    whole = deployed("qwen3-32b", "h100", tp=2)
    fp8 = dataclasses.replace(whole, model=shape("qwen3-32b", quantization_config={"quant_method": "fp8"}))
    awq = dataclasses.replace(whole, model=shape("qwen3-32b", quantization_config={"quant_method": "awq", "bits": 4}))
    embeddings = 2 * 151_936 * 5120
    linear = whole.model.parameters - embeddings
    assert whole.weight_bytes_per_rank == (linear + embeddings) * 2 / 2
    assert fp8.weight_bytes_per_rank == (linear + 2 * embeddings) / 2
    assert awq.weight_bytes_per_rank == (linear / 2 + 2 * embeddings) / 2
    assert dataclasses.replace(whole, kv_dtype="fp8").pool_tokens == pytest.approx(2 * whole.pool_tokens, abs=1)


def test_the_pool_is_what_the_weights_leave() -> None:
    # 81,559 MiB, of which SGLang leaves 512 + 1.5 x 8192 + 128 x 8 MiB free at tp 8, and 1 GiB is the context's.
    eight = deployed("qwen3-32b", "h100", tp=8)
    share = 1 - (512 + 12_288 + 1024) / 81_559
    assert eight.static_share == pytest.approx(share)
    assert eight.pool_tokens == int(((81_559 - 1024) * 2**20 * share - 32_761_446_400 * 2 / 8) / 32_768)
    told = deployed("qwen3-32b", "h100", tp=8, mem_fraction=0.5)
    assert told.pool_tokens == int(((81_559 - 1024) * 2**20 * 0.5 - 32_761_446_400 * 2 / 8) / 32_768)


def test_tokenizer_tied_models_keep_one_embedding() -> None:
    assert shape("qwen3-8b").parameters - shape("qwen3-8b", tie_word_embeddings=True).parameters == 151_936 * 4096


def test_the_language_part_of_a_multimodal_config_counts() -> None:
    text = {**KNOWN.models["qwen3-8b"]}
    assert ModelShape.from_config({"vision_config": {}, "text_config": text}) == shape("qwen3-8b")


# Time


def test_prefill_of_a_token_is_its_flops_and_its_all_reduces() -> None:
    # Qwen3-32B on 2 H100: 31.2e9 parameters of linear layers, half on each, at half of 989.4 TFLOP/s; and 128
    # all-reduces of 10,240 bytes, of which each rank moves 2 x 1/2, at 0.7 of 450 GB/s.
    cost = deployed("qwen3-32b", "h100", tp=2).cost_model()
    linear = 64 * (5120 * 128 * (2 * 64 + 2 * 8) + 3 * 5120 * 25_600)
    assert cost.prefill_seconds_per_token == pytest.approx(
        2 * linear / 2 / (989.4e12 * 0.5) + 128 * 10_240 / (450e9 * 0.7)
    )


def test_a_decode_step_reads_the_weights_once_and_the_kv_of_all() -> None:
    deployment = deployed("qwen3-8b", "h100")
    cost, calibration = deployment.cost_model(), CALIBRATION
    weights = (8_190_427_136 - 151_936 * 4096) * 2  # the embedding is looked up, not read
    assert cost.decode_step_seconds == pytest.approx(calibration.decode_overhead_seconds + weights / (3.35e12 * 0.8))
    assert cost.decode_seconds_per_kv_token == pytest.approx(147_456 / (3.35e12 * 0.8))


def test_a_batch_reads_the_experts_that_it_touches() -> None:
    # 8 of 256 a token: one token reads a 32nd of them, and a large batch all.
    cost = deployed("deepseek-v3", "h100", tp=16, nodes=2).cost_model()
    step = dataclasses.replace(cost, decode_seconds_per_request=0.0, decode_seconds_per_kv_token=0.0)
    touched = [
        (step.decode_seconds(n, 0) - cost.decode_step_seconds) / cost.experts_seconds for n in (1, 2, 16, 10_000)
    ]
    assert touched == pytest.approx([1 / 32, 1 - (31 / 32) ** 2, 1 - (31 / 32) ** 16, 1])


def test_kv_moves_over_each_ranks_link_or_through_the_shared_memory() -> None:
    # Two ranks of an H100 node: PCIe 5.0, 64 GB/s at 0.8, binds. Eight: 614.4 GB/s at 0.5 is less than 8 x 51.2.
    two, eight = (deployed("qwen3-32b", "h100", tp=tp) for tp in (2, 8))
    assert two.cost_model().load_seconds_per_token == pytest.approx(131_072 / 51.2e9)
    assert eight.cost_model().load_seconds_per_token == pytest.approx(32_768 * 8 / 307.2e9)
    assert eight.cost_model().store_seconds_per_token == eight.cost_model().load_seconds_per_token


def test_ranks_that_span_nodes_pay_for_the_network() -> None:
    one, two = (deployed("qwen3-8b", "h100", tp=8, nodes=nodes).cost_model() for nodes in (1, 2))
    assert two.prefill_seconds_per_token > one.prefill_seconds_per_token
    assert two.decode_step_seconds - one.decode_step_seconds == pytest.approx(
        2 * 36 * CALIBRATION.network_latency_seconds
    )


@given(
    extends=st.lists(st.tuples(st.integers(0, 50_000), st.integers(1, 8192)), min_size=1, max_size=5),
    model=st.sampled_from(["qwen3-8b", "qwen3-32b"]),
)
def test_a_prefill_takes_longer_with_every_token_and_less_long_on_more_gpus(
    extends: list[tuple[int, int]], model: str
) -> None:
    few, many = (deployed(model, "h100", tp=tp).cost_model() for tp in (2, 8))
    seconds = few.prefill_seconds(extends)
    (cached, computed), *rest = extends
    assert few.prefill_seconds([(cached + 1, computed), *rest]) >= seconds
    assert few.prefill_seconds([(cached, computed + 1), *rest]) >= seconds
    assert seconds >= few.prefill_step_seconds + few.weights_seconds
    assert many.prefill_seconds(extends) < seconds


@given(st.integers(1, 500), st.integers(0, 10**6), st.integers(1, 50))
def test_steps_in_closed_form_are_the_single_steps(requests: int, kv_tokens: int, steps: int) -> None:
    cost = deployed("deepseek-v3", "h100", tp=16, nodes=2).cost_model()
    single = sum(cost.decode_seconds(requests, kv_tokens + step * requests) for step in range(steps))
    assert cost.decode_seconds(requests, kv_tokens, steps) == pytest.approx(single)


def test_a_cost_model_without_the_new_terms_is_the_linear_one() -> None:
    assert CostModel(2.0, 0.5, 7.0, 1.0, 0.25).prefill_seconds([(10, 2), (0, 1)]) == 2.0 * 3 + 0.5 * (2 * 11.5 + 1)
    assert CostModel(2.0, 0.5, 7.0, 1.0, 0.25).decode_seconds(3, 40) == 7.0 + 3 + 10


# Deployments


@pytest.mark.parametrize("gpu", ["h100", "h200", "a100"])
def test_more_gpus_hold_more_tokens_and_decode_faster(gpu: str) -> None:
    ladder = [deployed("qwen3-32b", gpu, tp=tp) for tp in (1, 2, 4, 8)]
    pools = [deployment.pool_tokens for deployment in ladder]
    assert pools == sorted(pools)
    steps = [deployment.cost_model().decode_seconds(32, 200_000) for deployment in ladder]
    assert steps == sorted(steps, reverse=True)


def test_the_host_pool_follows_its_ratio_or_size_within_the_hosts_memory() -> None:
    two = deployed("qwen3-32b", "h100", tp=2)
    assert two.host_pool_tokens() == two.host_pool_tokens(ratio=2.0) == 2 * two.pool_tokens
    assert two.host_pool_tokens(size_gb=100) == int(100e9 / 131_072)
    assert two.host_pool_tokens(ratio=1e6) == two.host_pool_tokens(size_gb=1e6) == int(2000e9 * 0.8 / 2 / 131_072)


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "nodes", "reason"),
    [
        ("qwen3-32b", "l40s", 1, 1, "qwen3-32b does not fit on 1 x L40S 48 GB: 25.2 GB a GPU are lacking"),
        ("qwen3-32b", "h100", 3, 1, "does not divide the 64 attention heads"),
        ("qwen3-8b", "h100", 16, 1, "needs 16 GPUs a node, which has 8; give more nodes"),
        ("qwen3-8b", "h100", 4, 3, "cannot be shared evenly by 3 nodes"),
    ],
)
def test_what_cannot_be_deployed_is_told(model: str, gpu: str, tp: int, nodes: int, reason: str) -> None:
    with pytest.raises(DoesNotFit, match=reason):
        deployed(model, gpu, tp=tp, nodes=nodes)


@given(st.sampled_from(["l40s", "a100", "h100", "h200"]), st.sampled_from([1, 2, 4, 8]), st.floats(0.05, 1))
def test_a_deployment_has_a_pool_or_tells_what_is_lacking(gpu: str, tp: int, mem_fraction: float) -> None:
    try:
        deployment: Deployment = deployed("qwen3-32b", gpu, tp=tp, mem_fraction=mem_fraction)
    except DoesNotFit as error:
        assert "are lacking" in str(error)
    else:
        assert deployment.pool_tokens >= 1


# The catalogue


def test_every_constant_has_a_source_or_is_named_as_calibrated() -> None:
    tables = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    calibrated = tables.pop("calibrated")
    assert all(entry.keys() - {"paper"} == {"value", "note"} and entry["note"] for entry in calibrated.values())
    groups = [*tables.pop("gpus").values(), *tables.pop("models").values(), *tables.values()]
    assert all(len(group["source"]) > 10 for group in groups)


def test_models_are_read_from_a_config_or_its_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    assert KNOWN.model(str(tmp_path)) == KNOWN.model(str(tmp_path / "config.json")) == ModelShape.from_config(MIXTRAL)


def test_unknown_names_are_told_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no GPU 'b300' in the catalogue; give one of h100, h200, a100, l40s"):
        KNOWN.gpu("b300")
    with pytest.raises(CatalogueError, match="give one of qwen3-32b, qwen3-8b, deepseek-v3, or the path"):
        KNOWN.model("gpt-9")
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CatalogueError, match="is no JSON object"):
        KNOWN.model(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hidden_layers": None}, "has no `num_hidden_layers`"),
        ({"hidden_size": "large"}, "has hidden_size: 'large'"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "keep a state instead of a KV cache"),
        ({"quantization_config": {"quant_method": "magic"}}, "quantization 'magic' is not known"),
        ({"torch_dtype": "int3"}, "dtype 'int3' is not known"),
    ],
)
def test_a_config_that_does_not_tell_the_sizes(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ShapeError, match=reason):
        shape("qwen3-8b", **changes)


def test_a_broken_catalogue_is_told_in_a_line(tmp_path: Path) -> None:
    broken = tmp_path / "catalogue.toml"
    text = CATALOGUE.read_text()
    broken.write_text(re.sub(r"(?<=\nprefill_efficiency = {value = )[\d.]+", "50", text))
    with pytest.raises(CatalogueError, match=r"prefill_efficiency.*less than or equal to 1") as caught:
        load_catalogue(broken)
    assert "\n" not in str(caught.value)
