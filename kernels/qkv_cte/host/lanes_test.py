"""Rotate-half lanes against interleaved RoPE as complex numbers, through the kernel too."""

import pytest
import torch

from common import row_mx
from kernels.qkv_cte import NormType, QKNormConfig, row_mx_qkv_proj
from kernels.qkv_cte.host.lanes import to_interleaved, to_rotate_half
from kernels.qkv_cte.oracle import reference
from kernels.qkv_cte.oracle.compare import bf16_ulp

ACROSS_HEADS = NormType.RMS_NORM_ACROSS_HEADS


def complex_rope(segment, theta):
    """Interleaved RoPE in fp64: lanes (2j, 2j + 1) of a head are a complex number, which turns by theta[s, j]."""
    batch, seqlen, _ = segment.shape
    pairs = torch.view_as_complex(segment.double().reshape(batch, seqlen, -1, theta.shape[-1], 2))
    turned = pairs * torch.polar(torch.ones_like(theta), theta)[:, :, None]
    return torch.view_as_real(turned).reshape(segment.shape)


def theta_of(batch, seqlen, head_dim):
    """An angle for each token and pair of lanes, no two alike."""
    count = batch * seqlen * head_dim // 2
    return torch.linspace(-3.0, 3.0, count, dtype=torch.float64)[torch.randperm(count)].reshape(batch, seqlen, -1)


def interleaved_cache(values):
    """A cache of interleaved RoPE: both lanes of a pair have the pair's value."""
    return values.repeat_interleave(2, -1)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 6), (2, 128)])
def test_lanes_go_where_they_should(heads, head_dim):
    lanes = torch.arange(heads * head_dim)
    moved = to_rotate_half(lanes, head_dim)
    for head in range(heads):
        for j in range(head_dim // 2):
            assert moved[head * head_dim + j] == head * head_dim + 2 * j
            assert moved[head * head_dim + head_dim // 2 + j] == head * head_dim + 2 * j + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_inverse_moves_every_bit_back(dtype, dim):
    shape = [3, 5, 7]
    shape[dim] = 24
    bits = torch.randint(0, 256, (3 * 5 * 7 * 24 * 8,), dtype=torch.uint8)
    tensor = bits.view(dtype)[: torch.Size(shape).numel()].reshape(shape)
    kept = tensor.clone()
    moved = to_rotate_half(tensor, 8, dim)
    assert not torch.equal(moved.view(torch.uint8), tensor.view(torch.uint8))
    assert torch.equal(to_interleaved(moved, 8, dim).view(torch.uint8), tensor.view(torch.uint8))
    there_and_back = to_rotate_half(to_interleaved(tensor, 8, dim), 8, dim)
    assert torch.equal(there_and_back.view(torch.uint8), tensor.view(torch.uint8))
    assert torch.equal(kept.view(torch.uint8), tensor.view(torch.uint8))
    assert moved.is_contiguous()


def test_rotate_half_of_moved_lanes_is_interleaved_rope():
    torch.manual_seed(1)
    segment, theta = torch.randn(2, 9, 4 * 16, dtype=torch.float64), theta_of(2, 9, 16)
    cos, sin = (to_rotate_half(interleaved_cache(f(theta)), 16) for f in (torch.cos, torch.sin))
    assert torch.equal(cos, torch.cat([theta.cos()] * 2, -1))
    turned = to_interleaved(reference.rope(to_rotate_half(segment, 16), cos, sin), 16)
    assert (turned - complex_rope(segment, theta)).abs().max() < 1e-14


def test_a_layer_with_moved_lanes_is_the_interleaved_layer():
    """Weights, biases, gammas and caches go through the helpers, the call through kernel and simulator.

    Expected: norm across heads and complex RoPE of the layer as it was, in fp64, on the same quantised operands.
    """
    torch.manual_seed(2)
    batch, seqlen, hidden, heads, head_dim = 2, 70, 256, 3, 32
    width = heads * head_dim
    x = torch.randn(batch, seqlen, hidden)
    packed, theta = row_mx.row_quantise_packed(x), theta_of(batch, seqlen, head_dim)
    linears = [(torch.randn(width, hidden) / hidden**0.5, torch.randn(width)) for _ in "qkv"]
    gammas = [0.5 + torch.rand(width) for _ in "qk"]
    moved = [
        (to_rotate_half(weight, head_dim, dim=0), to_rotate_half(bias, head_dim)) if i < 2 else (weight, bias)
        for i, (weight, bias) in enumerate(linears)
    ]
    columns = [row_mx.quantise_columns(weight.T) for weight, _ in moved]
    cos, sin = (to_rotate_half(interleaved_cache(f(theta)), head_dim).float() for f in (torch.cos, torch.sin))
    result = row_mx_qkv_proj(
        packed,
        torch.cat([row_mx.pack_weight(codes) for codes, _ in columns], dim=1),
        torch.cat([scales for _, scales in columns], dim=1),
        torch.cat([bias for _, bias in moved])[None],
        num_heads=heads,
        head_dim=head_dim,
        num_kv_heads=heads,
        fused_rope=True,
        cos_cache=cos,
        sin_cache=sin,
        qk_norm_pre_rope=QKNormConfig(ACROSS_HEADS, ACROSS_HEADS),
        qk_norm_pre_rope_q_gamma=to_rotate_half(gammas[0], head_dim)[None],
        qk_norm_pre_rope_k_gamma=to_rotate_half(gammas[1], head_dim)[None],
    ).split(width, dim=-1)
    codes, row_scales = row_mx.unpack_rows(packed)
    quantised = codes.double() * row_scales.double()
    for i, (weight, bias) in enumerate(linears):
        weight_codes, scales = row_mx.quantise_columns(weight.T)
        exact = quantised @ (weight_codes.double() * scales.double()) + bias.double()
        if i < 2:
            exact = complex_rope(reference.rms_norm(exact, gammas[i][None], 1e-6), theta)
        got = to_interleaved(result[i], head_dim) if i < 2 else result[i]
        # The first of two roundings is relative to both lanes of a pair, wherever the rotation takes them.
        pair = exact.unflatten(-1, (-1, 2)).norm(dim=-1).repeat_interleave(2, -1)
        assert ((got.double() - exact).abs() / bf16_ulp(pair)).max() <= 2.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0], 2), TypeError, "tensor must be a Tensor"),
        ((torch.zeros(6), 3), ValueError, "head_dim is 3; accepted: an even number"),
        ((torch.zeros(6), 0), ValueError, "head_dim must be at least 2, got 0"),
        ((torch.zeros(6), 2.0), TypeError, "head_dim must be an integer"),
        (
            (torch.zeros(2, 6), 4),
            ValueError,
            r"tensor is \[2, 6\], 6 lanes in dim -1; accepted: a multiple of head_dim",
        ),
        ((torch.zeros(2, 0), 4), ValueError, r"tensor is \[2, 0\], 0 lanes"),
        ((torch.zeros(2, 6), 2, 2), ValueError, r"dim is 2; accepted with a tensor \[2, 6\]: -2 to 1"),
        ((torch.tensor(1.0), 2), ValueError, "dim is -1; accepted with a tensor"),
    ],
)
@pytest.mark.parametrize("move", [to_rotate_half, to_interleaved])
def test_bad_input_is_refused_by_name(move, arguments, error, message):
    with pytest.raises(error, match=f"^{message}"):
        move(*arguments)
