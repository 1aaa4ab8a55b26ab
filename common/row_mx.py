"""ROW_MX: FP8 codes with one fp32 scale per row, and the layouts that the projections read.

"ROW_MX" runs the MX matmul instruction with neutral block scales; all scaling is fp32 and happens after the
matmul: one dequant scale per activation row, one per output channel of the weights.

Rule, for a row or an output channel:  scale = max(amax / 448, 1e-6) in fp32,
                                        code  = float8_e4m3fn(x * (1 / scale)), saturating to +-448.

Layouts:
    packed activations  [..., H + 4] float8_e4m3fn: H codes, then the row's fp32 scale, little-endian.
    packed weights      [H // 4, I, 4] float8_e4m3fn: w[r, i, c] = W[4 r + c, i].
"""

from __future__ import annotations

import torch

FP8_MAX = 448.0
"""Largest finite float8_e4m3fn."""

MIN_SCALE = 1e-6
"""Smallest scale: rows of zeros get it, and their reciprocal stays finite."""

ROW_TAIL_BYTES = 4
"""Bytes of the scale at the end of a packed row."""

H_PACK = 4
"""Contraction rows side by side in one weight element; packed activation rows are whole 4-byte words too."""

_INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def to_float8(values: torch.Tensor) -> torch.Tensor:
    """Round fp32 `values` to float8_e4m3fn, to nearest even, saturating to +-448.

    A bare cast is no substitute: libraries disagree on whether 465.0 becomes NaN or 448.
    """
    return values.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


@torch.no_grad()
def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise the rows (last axis) of activations.

    Args:
        x: [..., H] float32, bfloat16 or float16, finite, H a multiple of 4.

    Returns:
        codes [..., H] float8_e4m3fn and scales [..., 1] float32, `x ~ codes * scales`.

    Raises:
        TypeError: `x` is no tensor of an accepted dtype.
        ValueError: `x` is empty, has NaN or infinity, or H is no multiple of 4.
    """
    _require_tensor("x", x, _INPUT_DTYPES, "[..., H]", min_dims=1)
    _require_h("x", x.shape[-1])
    return _quantise("x", x, axis=-1)


@torch.no_grad()
def quantise_columns(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise the output channels (columns) of a weight matrix, by the same rule.

    Args:
        w: [H, I] float32, bfloat16 or float16, finite, H a multiple of 4.

    Returns:
        codes [H, I] float8_e4m3fn and scales [1, I] float32.

    Raises:
        TypeError, ValueError: as `quantise_rows`.
    """
    _require_tensor("w", w, _INPUT_DTYPES, "[H, I]", dims=2)
    _require_h("w", w.shape[0])
    return _quantise("w", w, axis=0)


def pack_rows(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Put each row's scale behind its codes.

    Args:
        codes: [..., H] float8_e4m3fn without NaN, H a multiple of 4.
        scales: [..., 1] float32, finite and positive.

    Returns:
        [..., H + 4] float8_e4m3fn.

    Raises:
        TypeError, ValueError: naming the argument, and the index of the first NaN.
    """
    _require_tensor("codes", codes, (torch.float8_e4m3fn,), "[..., H]", min_dims=1)
    _require_h("codes", codes.shape[-1])
    _require_finite_codes("codes", codes)
    require_scales("scales", scales)
    if scales.shape != (*codes.shape[:-1], 1):
        expected = [*codes.shape[:-1], 1]
        raise ValueError(f"scales must be {expected} for codes {_shape(codes)}, got {_shape(scales)}")
    tail = scales.contiguous().view(torch.uint8)
    return torch.cat([codes.view(torch.uint8), tail], dim=-1).view(torch.float8_e4m3fn)


def unpack_rows(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse of `pack_rows`, bit for bit; scales are returned as they are, `require_scales` judges them.

    Args:
        packed: [..., H + 4] float8_e4m3fn, H a multiple of 4.

    Returns:
        codes [..., H] float8_e4m3fn and scales [..., 1] float32.
    """
    _require_tensor("packed", packed, (torch.float8_e4m3fn,), "[..., H + 4]", min_dims=1)
    width = packed.shape[-1]
    if width <= ROW_TAIL_BYTES or width % H_PACK:
        raise ValueError(f"packed must be [..., H + 4], H a multiple of {H_PACK}, got {_shape(packed)}")
    codes = packed[..., :-ROW_TAIL_BYTES].contiguous()
    tail = packed[..., -ROW_TAIL_BYTES:].contiguous()
    return codes, tail.view(torch.uint8).view(torch.float32)


def row_quantise_packed(x: torch.Tensor) -> torch.Tensor:
    """`pack_rows(*quantise_rows(x))`: [..., H] to [..., H + 4]."""
    return pack_rows(*quantise_rows(x))


def pack_weight(codes: torch.Tensor) -> torch.Tensor:
    """Codes [H, I] float8_e4m3fn to the kernels' layout [H // 4, I, 4]: `w[r, i, c] = codes[4 r + c, i]`."""
    _require_tensor("codes", codes, (torch.float8_e4m3fn,), "[H, I]", dims=2)
    _require_h("codes", codes.shape[0])
    h, i = codes.shape
    lanes = codes.view(torch.uint8).reshape(h // H_PACK, H_PACK, i)
    return lanes.transpose(1, 2).contiguous().view(torch.float8_e4m3fn)


def unpack_weight(packed: torch.Tensor) -> torch.Tensor:
    """Inverse of `pack_weight`: [H // 4, I, 4] to [H, I]."""
    _require_tensor("packed", packed, (torch.float8_e4m3fn,), "[H // 4, I, 4]", dims=3)
    rows, i, lanes = packed.shape
    if lanes != H_PACK:
        raise ValueError(f"packed must be [H // 4, I, {H_PACK}], got {_shape(packed)}")
    return packed.view(torch.uint8).transpose(1, 2).reshape(rows * H_PACK, i).view(torch.float8_e4m3fn)


def require_scales(name: str, scales: torch.Tensor) -> None:
    """Refuse dequant scales that are not finite and positive.

    Raises:
        TypeError: `scales` is no float32 tensor.
        ValueError: it is empty or has a NaN, infinite, zero or negative entry; names the first one's index.
    """
    _require_tensor(name, scales, (torch.float32,), "a tensor")
    bad = ~(torch.isfinite(scales) & (scales > 0))
    if bad.any():
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be finite and positive, got {scales[index].item()} at index {list(index)} "
            f"({int(bad.sum())} such of {scales.numel()})"
        )


def _quantise(name: str, values: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    amax = values.abs().amax(dim=axis, keepdim=True).float()
    if not torch.isfinite(amax).all():
        index = (~torch.isfinite(values)).nonzero()[0].tolist()
        raise ValueError(f"{name} must be finite, got {values[tuple(index)].item()} at index {index}")
    scales = (amax / FP8_MAX).clamp(min=MIN_SCALE)
    return to_float8(values.float() * (1.0 / scales)), scales


def _require_tensor(
    name: str,
    value: object,
    dtypes: tuple[torch.dtype, ...],
    form: str,
    *,
    dims: int | None = None,
    min_dims: int = 0,
) -> None:
    accepted = " or ".join(str(dtype) for dtype in dtypes)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be {form} {accepted}, got {type(value).__name__}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be {accepted}, got {value.dtype}")
    if value.dim() < min_dims or dims not in (None, value.dim()):
        raise ValueError(f"{name} must be {form}, got {_shape(value)}")
    if value.numel() == 0:
        raise ValueError(f"{name} must not be empty, got {_shape(value)}")


def _require_finite_codes(name: str, codes: torch.Tensor) -> None:
    nan = (codes.view(torch.uint8) & 0x7F) == 0x7F
    if nan.any():
        raise ValueError(
            f"{name} must be finite, got nan at index {nan.nonzero()[0].tolist()} "
            f"({int(nan.sum())} such of {codes.numel()})"
        )


def _require_h(name: str, h: int) -> None:
    if h % H_PACK:
        raise ValueError(f"{name} must have H a multiple of {H_PACK}, got H = {h}")


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))
