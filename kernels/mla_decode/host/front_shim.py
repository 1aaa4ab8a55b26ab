"""The front-fold, alone and with the attention, as torch calls it."""

# No lazy annotations: torch reads the custom ops' schemas off these signatures.

import torch

from common.checks import require_int
from kernels.mla_decode.device.decode import fused_decode, stored_qkv
from kernels.mla_decode.host import arguments
from kernels.mla_decode.host.launch import launch


@torch.no_grad()
def mla_decode_qkv(
    hidden_states: torch.Tensor,
    wq_a: torch.Tensor,
    q_norm_w: torch.Tensor,
    wq_b: torch.Tensor,
    wkv_a: torch.Tensor,
    kv_norm_w: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_absorb_w: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    input_norm_w: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    *,
    target: str = "trn2",
    lnc: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and this step's cache rows from hidden states; writes the rows to `kv_cache`, in place.

    All tensors lie on one device; those without a type here are of the cache's, bfloat16 or float32, and bfloat16
    where that has fp8 rows.

    Args:
        hidden_states: [n_tokens, hidden], up to 128 tokens.
        wq_a: [hidden, q_lora]; q_norm_w: [q_lora] float32; wq_b: [q_lora, n_heads * (nope + rope)], up to 128 heads.
        wkv_a: [hidden, kv_lora_rank + rope], `[kv_latent | k_pe]`; kv_norm_w: [kv_lora_rank] float32.
        cos, sin: [n_tokens, rope / 2] float32, of each token's position. RoPE is interleaved, pairs (2i, 2i + 1).
        q_absorb_w: [n_heads, nope, kv_lora_rank], nope up to 128.
        kv_cache: [n_blocks, 1, block_size, rope + kv_lora_rank], contiguous; only rows slot_mapping are written. Or
            uint8 rows of `cache_format.row_bytes`, fp8 with scales, on trn3.
        slot_mapping: [n_tokens] int32, flat cache rows, each once.
        input_norm_w: [hidden] float32, or None where hidden states are normalised already.
        norm_eps: of every norm.
        target: "trn2" or "trn3".
        lnc: cores, 1 or 2; two take half of the tokens or of the heads each, so that one number is even.

    Returns:
        q_absorbed [n_tokens, n_heads, kv_lora_rank], q_pe [n_tokens, n_heads, rope], kv_row_cur [n_tokens,
        rope + kv_lora_rank] of the weights' type.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run.
    """
    chip = arguments.require_target(target, lnc)
    device = arguments.require_cache(kv_cache).device
    dims = arguments.require_front_dims(hidden_states, q_absorb_w, cos, kv_cache, value=1, n_prior=1, lnc=lnc)
    tensors = _front_tensors(hidden_states, wq_a, q_norm_w, wq_b, wkv_a, kv_norm_w, cos, sin, q_absorb_w)
    front = arguments.require_front(dims, kv_cache, tensors, input_norm_w, slot_mapping)
    eps = arguments.require_above_zero("norm_eps", norm_eps)
    config = arguments.make_plan(dims, chip, 0, front).front_config
    absorbed, rotary, row = launch(
        stored_qkv[lnc],
        (
            *(tensor.contiguous() for tensor in tensors.values()),
            kv_cache,
            slot_mapping.contiguous(),
            None if input_norm_w is None else input_norm_w.contiguous(),
            eps,
            config,
        ),
        device,
        target,
    )
    q_absorbed = absorbed.permute(2, 3, 1, 0).reshape(dims.n_tokens, dims.n_heads, dims.kv_lora_rank)
    return q_absorbed.contiguous(), rotary.permute(1, 2, 0).contiguous(), row


@torch.no_grad()
def mla_decode(
    hidden_states: torch.Tensor,
    wq_a: torch.Tensor,
    q_norm_w: torch.Tensor,
    wq_b: torch.Tensor,
    wkv_a: torch.Tensor,
    kv_norm_w: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_absorb_w: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    prior_rows: torch.Tensor,
    prior_key_pos: torch.Tensor,
    prior_rows_natural: torch.Tensor,
    positions: torch.Tensor,
    out_absorb_w: torch.Tensor,
    o_proj_w: torch.Tensor,
    n_prior: int,
    softmax_scale: float,
    input_norm_w: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    *,
    target: str = "trn2",
    lnc: int = 1,
    dma_transposed_chunks: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """An attention block's decode step in one kernel: `mla_decode_qkv`, then the attention on its queries.

    The step's rows are in the cache when the attention reads it, so that tokens of one sequence, as in speculative
    decoding, may select each other's.

    Args:
        hidden_states to slot_mapping, input_norm_w, norm_eps: as for `mla_decode_qkv`.
        prior_rows to softmax_scale: as for `mla_decode_attention`; o_proj_w is [n_heads * v_head_dim, hidden].
        target, lnc, dma_transposed_chunks: as for `mla_decode_attention`.

    Returns:
        The block's output [n_tokens, hidden], before the all-reduce and without the residual, and kv_row_cur
        [n_tokens, rope + kv_lora_rank], which is in `kv_cache` too.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run.
    """
    chip = arguments.require_target(target, lnc)
    device = arguments.require_cache(kv_cache).device
    form = ("n_heads", "v_head_dim", "kv_lora_rank")
    arguments.require_tensor("out_absorb_w", out_absorb_w, (arguments.weights_dtype(kv_cache),), form, device)
    keys = require_int("n_prior", n_prior, at_least=1)
    dims = arguments.require_front_dims(hidden_states, q_absorb_w, cos, kv_cache, out_absorb_w.shape[1], keys, lnc)
    tensors = _front_tensors(hidden_states, wq_a, q_norm_w, wq_b, wkv_a, kv_norm_w, cos, sin, q_absorb_w)
    front = arguments.require_front(dims, kv_cache, tensors, input_norm_w, slot_mapping)
    arguments.require_tails(dims, out_absorb_w, o_proj_w)
    tables = {
        "prior_rows": prior_rows,
        "prior_key_pos": prior_key_pos,
        "prior_rows_natural": prior_rows_natural,
    }
    arguments.require_index(dims, device, tables)
    arguments.require_positions(positions, dims.n_tokens, device)
    scale = arguments.require_above_zero("softmax_scale", softmax_scale)
    eps = arguments.require_above_zero("norm_eps", norm_eps)
    config = arguments.make_plan(dims, chip, dma_transposed_chunks, front).front_config
    operands = (
        *(tensor.contiguous() for tensor in tensors.values()),
        kv_cache,
        slot_mapping.contiguous(),
        *(table.contiguous() for table in tables.values()),
        positions.contiguous(),
        out_absorb_w.contiguous(),
        o_proj_w.contiguous(),
        dims.n_prior,
        scale,
        None if input_norm_w is None else input_norm_w.contiguous(),
        eps,
        config,
    )
    output, row = launch(fused_decode[lnc], operands, device, target)
    return output, row


def _front_tensors(
    hidden_states: torch.Tensor,
    wq_a: torch.Tensor,
    q_norm_w: torch.Tensor,
    wq_b: torch.Tensor,
    wkv_a: torch.Tensor,
    kv_norm_w: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_absorb_w: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """By name, in the kernel's order."""
    return {
        "hidden_states": hidden_states,
        "wq_a": wq_a,
        "q_norm_w": q_norm_w,
        "wq_b": wq_b,
        "wkv_a": wkv_a,
        "kv_norm_w": kv_norm_w,
        "cos": cos,
        "sin": sin,
        "q_absorb_w": q_absorb_w,
    }
