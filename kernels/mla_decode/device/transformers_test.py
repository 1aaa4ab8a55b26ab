"""The fused step against transformers' DeepSeek-V3.2 attention, which keeps keys and values of every head."""

import pytest
import torch
from transformers import DeepseekV32Config, DynamicCache
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention, DeepseekV32RotaryEmbedding

from kernels.mla_decode import build_prior_index, mla_decode, yarn_softmax_scale
from kernels.mla_decode.oracle.compare import MAX_RELATIVE_RMS, relative_rms

HIDDEN, LOW, RANK, NOPE, ROPE, VALUE, HEADS = 96, 64, 128, 32, 16, 24, 4
TOKENS, BLOCK_SIZE, SELECTED = 100, 8, 40
FACTOR = 40.0
POSITIONS = (0, 1, 7, 8, 39, 40, 99)
"""Of the tokens that are compared: about a page's edge, and those of the selection limit."""


def make_attention(index_topk):
    """A random attention with YaRN; its weights are bf16 numbers."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": FACTOR,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    config = DeepseekV32Config(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        num_hidden_layers=1,
        q_lora_rank=LOW,
        kv_lora_rank=RANK,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=VALUE,
        index_n_heads=16,
        index_head_dim=32,
        index_topk=index_topk,
        max_position_embeddings=2560,
        rope_parameters=rope,
    )
    config._attn_implementation = "eager"
    made = DeepseekV32Attention(config, 0).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for tensor in made.state_dict().values():
        normal = torch.randn(tensor.shape, generator=generator)
        tensor.copy_((1 + 0.2 * normal if tensor.dim() == 1 else normal * tensor.shape[-1] ** -0.5).bfloat16())
    return made


def run_theirs(attention, hidden):
    """Output [tokens, hidden], cache rows `[k_pe | kv_latent]`, selected positions, and cos and sin."""
    positions = torch.arange(TOKENS)[None]
    cos, sin = DeepseekV32RotaryEmbedding(attention.config)(hidden, positions)
    mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)[None, None]
    cache, selected = DynamicCache(config=attention.config), []
    handle = attention.indexer.register_forward_hook(lambda *call: selected.append(call[-1][0]))
    output, _ = attention(hidden[None], (cos, sin), mask, cache=cache, position_ids=positions)
    handle.remove()
    # Rotated pairs are kept apart there, first all their firsts.
    k_pe = torch.stack(cache.layers[0].values[0, 0].chunk(2, dim=-1), dim=-1).flatten(-2)
    rows = torch.cat([k_pe, cache.layers[0].keys[0, 0]], dim=-1)
    return output[0], rows, selected[0], cos[0, :, : ROPE // 2], sin[0, :, : ROPE // 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("index_topk", [SELECTED, 1000])
def test_as_transformers(index_topk, dtype):
    """Sparse beyond 40 positions, and dense. A token whose own position is not selected is left out: see models/."""
    attention = make_attention(index_topk)
    hidden = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    expected, rows, selected, cos, sin = run_theirs(attention, hidden)
    own = torch.tensor([p for p in POSITIONS if p in selected[p]], dtype=torch.int32)
    assert len(own) >= 5
    pages = -(-TOKENS // BLOCK_SIZE)
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(2)).int()
    kv_cache = torch.full((pages, 1, BLOCK_SIZE, ROPE + RANK), torch.nan, dtype=dtype)
    slots = table[torch.arange(TOKENS) // BLOCK_SIZE] * BLOCK_SIZE + torch.arange(TOKENS) % BLOCK_SIZE
    kv_cache.view(-1, ROPE + RANK)[slots.long()] = rows.to(dtype)
    both = attention.kv_b_proj.weight.unflatten(0, (HEADS, NOPE + VALUE))
    n_prior = min(index_topk, TOKENS)
    tables = build_prior_index(
        selected[own.long()][:, :n_prior], own, table.expand(len(own), -1), BLOCK_SIZE, pages * BLOCK_SIZE, n_prior
    )
    output, row = mla_decode(
        hidden[own.long()].to(dtype),
        attention.q_a_proj.weight.T.to(dtype),
        attention.q_a_layernorm.weight,
        attention.q_b_proj.weight.T.to(dtype),
        attention.kv_a_proj_with_mqa.weight.T.to(dtype),
        attention.kv_a_layernorm.weight,
        cos[own.long()],
        sin[own.long()],
        both[:, :NOPE].to(dtype),
        kv_cache,
        slots[own.long()].int(),
        *tables,
        own,
        both[:, NOPE:].to(dtype),
        attention.o_proj.weight.T.to(dtype),
        n_prior,
        yarn_softmax_scale(NOPE + ROPE, FACTOR, 1.0),
    )
    # transformers in fp32 is as far from the exact result as the kernel; the step's halves each have the limit.
    limit = 2 * MAX_RELATIVE_RMS[dtype]
    errors = relative_rms(row.float(), rows[own.long()]), relative_rms(output.float(), expected[own.long()])
    print(f"top {index_topk}, {dtype}: rows {errors[0]:.2e}, output {errors[1]:.2e}")
    assert max(errors) < limit
