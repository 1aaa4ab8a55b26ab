"""Small random models of `transformers`, which every test compares with."""

from __future__ import annotations

import dataclasses

import torch
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM

from models.deepseek_v32.config import ModelConfig, Yarn
from models.deepseek_v32.packing import Packed
from models.deepseek_v32.weights import ModelWeights, pack

TINY = ModelConfig(
    vocab_size=256,
    hidden_size=96,
    intermediate_size=160,
    moe_intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    n_routed_experts=16,
    n_shared_experts=1,
    num_experts_per_tok=4,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    first_k_dense_replace=1,
    q_lora_rank=64,
    kv_lora_rank=128,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=24,
    index_n_heads=16,
    index_head_dim=32,
    index_topk=24,
    max_position_embeddings=4096,
    rope_theta=10000.0,
    yarn=Yarn(
        factor=40.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0
    ),
)


def make_oracle(config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> DeepseekV32ForCausalLM:
    """A random model whose every part matters: projections keep their input's size, norms and corrections vary.

    Weights are bf16 numbers, so that models of either type have the same.
    """
    plain = {
        f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in ("yarn", "rope_theta")
    }
    assert config.yarn is not None
    rope = {"rope_type": "yarn", "rope_theta": config.rope_theta, **dataclasses.asdict(config.yarn)}
    made = DeepseekV32Config(**plain, num_key_value_heads=config.num_attention_heads, rope_parameters=rope)
    made._attn_implementation = "eager"
    model = DeepseekV32ForCausalLM(made).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(_random(name, tensor, generator).bfloat16())
    return model.to(dtype)


def _random(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    normal = torch.randn(tensor.shape, generator=generator)
    if name.endswith("correction_bias"):
        return 0.1 * normal
    if tensor.dim() == 1:
        return 0.2 * normal if name.endswith("bias") else 1 + 0.2 * normal
    return normal if "embed_tokens" in name else normal * tensor.shape[-1] ** -0.5


def hub_tensors(oracle: DeepseekV32ForCausalLM) -> dict[str, torch.Tensor]:
    """Its tensors under the hub's names, which has every expert's projections apart."""
    found = {}
    for name, tensor in oracle.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2)
                found[name.replace("gate_up_proj", f"{expert}.gate_proj.weight")] = gate
                found[name.replace("gate_up_proj", f"{expert}.up_proj.weight")] = up
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(tensor):
                found[name.replace("down_proj", f"{expert}.down_proj.weight")] = down
        else:
            found[name] = tensor
    return found


def weights_of(
    config: ModelConfig, oracle: DeepseekV32ForCausalLM, dtype: torch.dtype, rank: int = 0, ranks: int = 1
) -> ModelWeights:
    """A rank's weights of an oracle."""
    tensors = hub_tensors(oracle)

    def read(packed: Packed, part: tuple[slice, ...]) -> torch.Tensor:
        assert tensors[packed.source].shape == packed.source_shape, packed
        return tensors[packed.source][part]

    return pack(config, read, dtype, rank, ranks)
