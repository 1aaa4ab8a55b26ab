"""Configurations: the published one is read, others are refused by name."""

import json
from typing import Any

import pytest
import torch

from models.deepseek_v32 import config as configuration
from models.deepseek_v32.attention import Device
from models.deepseek_v32.config import PUBLISHED, from_json
from models.deepseek_v32.model import require_servable

HUB: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v32",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
"""DeepSeek-V3.2's config.json."""


def changed(**values):
    return {**HUB, **values}


def rope_without(*keys, **values):
    return changed(rope_scaling={k: v for k, v in {**HUB["rope_scaling"], **values}.items() if k not in keys})


def test_published():
    assert from_json(HUB) == PUBLISHED


def test_as_transformers_saves_it():
    saved = {k: v for k, v in HUB.items() if k not in ("rope_scaling", "rope_theta")}
    scaling = {**HUB["rope_scaling"], "rope_type": "yarn", "rope_theta": 10000}
    scaling.pop("type")
    saved |= {"rope_parameters": scaling, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 58}
    assert from_json(saved) == PUBLISHED


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (changed(model_type="llama"), "model_type is 'llama'; accepted: 'deepseek_v32'"),
        (changed(scoring_func="softmax"), "scoring_func is 'softmax'; accepted: 'sigmoid'"),
        (changed(topk_method="greedy"), "topk_method is 'greedy'; accepted: 'noaux_tc'"),
        (changed(hidden_act="gelu"), "hidden_act is 'gelu'; accepted: 'silu'"),
        (changed(attention_bias=True), "attention_bias is True; accepted: False"),
        (changed(tie_word_embeddings=True), "tie_word_embeddings is True; accepted: False"),
        (changed(rms_norm_eps=1e-5), "rms_norm_eps is 1e-05; accepted: 1e-06"),
        (changed(num_key_value_heads=8), "num_key_value_heads is 8; accepted: num_attention_heads 128"),
        (changed(rope_scaling={"type": "linear", "factor": 2}), "rope_scaling has type 'linear'; accepted: 'yarn' or"),
        (rope_without("factor"), "rope_scaling lacks factor; accepted with type 'yarn': factor, original_max"),
        (rope_without("mscale", "beta_fast"), "rope_scaling lacks beta_fast, mscale; accepted"),
        (rope_without("mscale_all_dim"), "rope_scaling lacks mscale_all_dim"),
        (rope_without(factor=0), "factor is 0; accepted: a finite number above 0"),
        (rope_without(factor="40"), "factor is '40'; accepted: a number above 0"),
        (rope_without(beta_slow=64), "beta_fast is 32; accepted: from beta_slow 64 on"),
        (rope_without(truncate=False), "rope_scaling has truncate or attention_factor; accepted: neither"),
        (changed(rope_scaling=[1]), "rope_scaling is [1]; accepted: a JSON object"),
        (changed(rope_theta=None), "rope_theta is missing"),
        (changed(rope_theta=1), "rope_theta is 1; accepted: a finite number above 1"),
        (changed(rope_theta=float("nan")), "rope_theta is nan; accepted: a finite number above 0"),
        (rope_without(factor=10**400), "factor is an integer of 1329 bits; accepted: a finite number above 0"),
        (changed(index_topk=None), "index_topk is missing"),
        (changed(index_topk=0), "index_topk is 0; accepted: from 1 to 2**63 - 1"),
        (changed(hidden_size="big"), "hidden_size is 'big'; accepted: an integer from 1"),
        (changed(hidden_size=True), "hidden_size is True; accepted: an integer from 1"),
        (changed(qk_rope_head_dim=63), "qk_rope_head_dim is 63; accepted: an even number"),
        (changed(index_head_dim=32), "qk_rope_head_dim is 64; accepted: up to index_head_dim 32"),
        (changed(n_routed_experts=255), "n_routed_experts is 255; accepted: a multiple of 8"),
        (changed(n_group=256, topk_group=4), "n_group is 256; accepted: groups of two experts or more"),
        (changed(topk_group=9), "topk_group is 9; accepted: up to n_group 8"),
        (changed(num_experts_per_tok=129), "num_experts_per_tok is 129; accepted: up to 128"),
        (changed(norm_topk_prob=1), "norm_topk_prob is 1; accepted: true or false"),
        (changed(hidden_size=10**400), "hidden_size is an integer of 1329 bits; accepted: from 1 to 2**63 - 1"),
        (changed(mlp_layer_types=["sparse"] * 61), "mlp_layer_types is ['sparse', 'sparse', 'sparse', "),
        (changed(mlp_layer_types=["dense"] * 3, num_hidden_layers=2**60), "accepted: dense for the first 3 of 11529"),
        (changed(mlp_layer_types=["dense"] * 3 + ["odd"] * 58), "mlp_layer_types is ['dense', "),
        (changed(mlp_layer_types=3), "mlp_layer_types is 3; accepted: dense for the first 3 of 61 layers"),
        (changed(model_type=["x"] * 3000), "model_type is ['x', 'x', "),
        (rope_without(type="y" * 10000), "rope_scaling has type 'yyyyyyyyyyyy...yyy"),
        ([], "the configuration is a list; accepted: a JSON object"),
    ],
)
def test_refused_by_name(given, message):
    with pytest.raises((TypeError, ValueError)) as refusal:
        from_json(given)
    assert message in str(refusal.value)
    assert len(str(refusal.value)) < 250


def test_a_files_faults_begin_with_its_name(tmp_path):
    path = tmp_path / "config.json"
    for text, message in (
        ("{", "Expecting"),
        ("[" * 100_000, "nested too deep"),
        (json.dumps(changed(hidden_act="gelu")), "hidden_act is 'gelu'"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"config.json: .*{message}"):
            configuration.from_file(path)


@pytest.mark.parametrize(
    ("changes", "ranks", "batch", "message"),
    [
        ({}, 3, 16, "num_attention_heads is 128; accepted over 3 ranks: a multiple of 3"),
        ({"vocab_size": 129281}, 16, 16, "vocab_size is 129281; accepted over 16 ranks: a multiple of 16"),
        ({"intermediate_size": 18433}, 16, 16, "intermediate_size is 18433; accepted over 16 ranks"),
        ({"moe_intermediate_size": 100}, 16, 16, "moe_intermediate_size is 100; accepted over 16 ranks"),
        ({"num_attention_heads": 256, "num_key_value_heads": 256}, 1, 4, "n_heads is 256; accepted: up to 128"),
        ({"kv_lora_rank": 500}, 16, 16, "kv_lora_rank is 500; accepted: a multiple of 128 up to 512"),
        ({"qk_nope_head_dim": 192}, 16, 16, "nope is 192; accepted: up to 128"),
        ({"v_head_dim": 256}, 16, 16, "v_head_dim is 256; accepted: up to 128"),
        ({"index_head_dim": 256, "qk_rope_head_dim": 130}, 16, 16, "rope is 130; accepted: up to 128"),
        ({}, 16, 129, "n_tokens is 129; accepted: up to 128"),
        ({}, 1, 128, "batch 128 with 128 heads per rank does not fit"),
        ({}, 0, 16, "ranks must be at least 1, got 0"),
    ],
)
def test_what_the_kernels_cannot_serve(changes, ranks, batch, message):
    config = from_json(changed(**changes))
    with pytest.raises((TypeError, ValueError)) as refusal:
        require_servable(config, ranks, batch, torch.bfloat16, Device())
    assert message in str(refusal.value)


def test_published_is_servable():
    for ranks in (8, 16, 32, 64, 128):
        require_servable(PUBLISHED, ranks, 16, torch.bfloat16, Device())
    with pytest.raises(TypeError, match=r"dtype is torch.float16; accepted: torch.bfloat16 or torch.float32"):
        require_servable(PUBLISHED, 16, 16, torch.float16, Device())
