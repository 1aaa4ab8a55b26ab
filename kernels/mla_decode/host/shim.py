"""The attention as torch calls it."""

# No lazy annotations: torch reads the custom ops' schemas off these signatures.

import torch

from kernels.mla_decode.device.config import P_MAX
from kernels.mla_decode.device.kernel import staged_attention
from kernels.mla_decode.host import arguments
from kernels.mla_decode.host.launch import launch


@torch.no_grad()
def mla_decode_attention(
    q_absorbed: torch.Tensor,
    q_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_row_cur: torch.Tensor,
    prior_rows: torch.Tensor,
    prior_key_pos: torch.Tensor,
    prior_rows_natural: torch.Tensor,
    positions: torch.Tensor,
    out_absorb_w: torch.Tensor,
    o_proj_w: torch.Tensor,
    n_prior: int,
    softmax_scale: float,
    *,
    target: str = "trn2",
    lnc: int = 1,
    dma_transposed_chunks: int | None = None,
) -> torch.Tensor:
    """One decode step's attention over selected keys, standalone: stages the queries, then runs the kernel.

    The arguments are those of the kernel (`kernel.mla_decode_attention`) in its order, but for the queries, which
    have their natural layouts. All tensors lie on one device and, tables and positions aside, are of the cache's
    type. Tensors on the CPU run on the simulator, others on the device they are on. The cache is not written.

    Args:
        q_absorbed: [n_tokens, n_heads, kv_lora_rank] bfloat16 or float32; up to 128 tokens and heads, kv_lora_rank
            128, 256, 384 or 512.
        q_pe: [n_tokens, n_heads, rope], rope even and up to 128.
        kv_cache: [n_blocks, 1, block_size, rope + kv_lora_rank], contiguous; rows `[k_pe | kv_latent]`. Or uint8
            rows of `cache_format.row_bytes`, fp8 with scales, on trn3; the other tensors are bfloat16 then.
        kv_row_cur: [n_tokens, rope + kv_lora_rank], each token's own key, which it always sees.
        prior_rows, prior_key_pos, prior_rows_natural: from `build_prior_index`.
        positions: [n_tokens] int32.
        out_absorb_w: [n_heads, v_head_dim, kv_lora_rank], v_head_dim up to 128.
        o_proj_w: [n_heads * v_head_dim, hidden].
        n_prior: keys per token that the tables hold.
        softmax_scale: applied to the scores.
        target: "trn2" or "trn3".
        lnc: cores, 1 or 2; two take half of the tokens or of the heads each, so that one number is even.
        dma_transposed_chunks: latent tiles transposed by DMA; None leaves it to the plan, see `plan.make`.

    Returns:
        [n_tokens, hidden] of the cache's type, this rank's part before the all-reduce.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run.
    """
    chip = arguments.require_target(target, lnc)
    device = arguments.require_cache(kv_cache).device
    dims = arguments.require_dims(q_absorbed, q_pe, kv_cache, out_absorb_w, o_proj_w, n_prior, lnc)
    arguments.require_tensor("kv_row_cur", kv_row_cur, (q_pe.dtype,), ("n_tokens", "kv_row_dim"), device)
    arguments.require_shape("kv_row_cur", kv_row_cur, (dims.n_tokens, dims.row_width))
    tables = {
        "prior_rows": prior_rows,
        "prior_key_pos": prior_key_pos,
        "prior_rows_natural": prior_rows_natural,
    }
    arguments.require_index(dims, device, tables)
    arguments.require_positions(positions, dims.n_tokens, device)
    scale = arguments.require_above_zero("softmax_scale", softmax_scale)
    config = arguments.make_plan(dims, chip, dma_transposed_chunks).config
    operands = (
        stage_absorbed(q_absorbed),
        stage_rope(q_pe),
        kv_cache,
        kv_row_cur.contiguous(),
        *(table.contiguous() for table in tables.values()),
        positions.contiguous(),
        out_absorb_w.contiguous(),
        o_proj_w.contiguous(),
        dims.n_prior,
        scale,
        config,
    )
    result: torch.Tensor = launch(staged_attention[lnc], operands, device, target)
    return result


def stage_absorbed(q_absorbed: torch.Tensor) -> torch.Tensor:
    """[n_tokens, n_heads, kv_lora_rank] to [128, kv_lora_rank / 128, n_tokens, n_heads], as in SBUF."""
    tokens, heads, rank = q_absorbed.shape
    return q_absorbed.reshape(tokens, heads, rank // P_MAX, P_MAX).permute(3, 2, 0, 1).contiguous()


def stage_rope(q_pe: torch.Tensor) -> torch.Tensor:
    """[n_tokens, n_heads, rope] to [128, n_tokens, n_heads], as in SBUF; zeros from partition rope on."""
    tokens, heads, rope = q_pe.shape
    staged = q_pe.new_zeros(P_MAX, tokens, heads)
    staged[:rope] = q_pe.permute(2, 0, 1)
    return staged
