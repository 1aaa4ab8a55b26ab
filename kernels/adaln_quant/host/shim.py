"""The kernels as torch calls them."""

from __future__ import annotations

import torch

from kernels.adaln_quant.host import launch, ops


def adaln_modulate(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float = 1e-6,
    quant: str | None = None,
    *,
    target: str = "trn3",
    lnc: int = 2,
) -> torch.Tensor:
    """`layer_norm(x) * (1 + scale) + shift`, LayerNorm over H without weights, as diffusers' WanTransformerBlock does.

    Everything is fp32 up to one rounding, to bf16 or to the codes. A LayerNorm with weights w and b, as before Wan's
    cross-attention, is `scale = w - 1, shift = b`.

    Tensors on the CPU run on the simulator, others on the device they are on. All lie on one device. torch.compile and
    torch.export see one op, `torch.ops.adaln_quant.modulate`. No gradients.

    Args:
        x: [B, S, H] bfloat16 or float32, H a multiple of 4, S of `lnc`; magnitudes up to 2**48.
        scale, shift: both [B, H], a vector per batch (Wan2.2 A14B); or both [B, S, H], one per token (TI2V 5B); float32
            or bfloat16, of one type; magnitudes up to 2**48.
        eps: added to the variance.
        quant: "row" for packed rows, which need trn3; None for bfloat16.
        target: "trn2" or "trn3".
        lnc: cores that share the call, 1 or 2; each takes half of the tokens of each batch.

    Returns:
        With quant "row": [B, S, H + 4] float8_e4m3fn, H codes and the row's fp32 scale (`common.row_mx`), as
        `row_mx_qkv_proj` takes them, which also wants H a multiple of 128. Else [B, S, H] bfloat16. A new tensor.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run.
    """
    run = ops.traced_modulate if torch.compiler.is_compiling() else launch.modulate
    return run(x, scale, shift, eps, quant, target=target, lnc=lnc)


def row_quantize_packed(x: torch.Tensor, *, target: str = "trn3", lnc: int = 2) -> torch.Tensor:
    """Quantises each row of x: the bytes of `common.row_mx.row_quantise_packed`.

    Runs where, and is traced as, `adaln_modulate`; the op is `torch.ops.adaln_quant.row_quantize_packed`.

    Args:
        x: [B, S, H] bfloat16 or float32, finite, H a multiple of 4, S of `lnc`.
        target: "trn3"; float8_e4m3fn does not exist on "trn2".
        lnc: cores that share the call, 1 or 2; each takes half of the tokens.

    Returns:
        [B, S, H + 4] float8_e4m3fn, H codes and the row's fp32 scale, max(max|row| / 448, 1e-6). A new tensor.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has run.
    """
    run = ops.traced_quantise if torch.compiler.is_compiling() else launch.quantise
    return run(x, target=target, lnc=lnc)
