"""Random arguments: a call runs and gives what its sizes say, or is refused with a ValueError or TypeError."""

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common import row_mx
from kernels.qkv_cte import Choice, NormType, QKNormConfig, QKVOutputLayout, row_mx_qkv_proj
from kernels.qkv_cte.device.config import Flow

ACROSS_HEADS = NormType.RMS_NORM_ACROSS_HEADS
FP8 = torch.float8_e4m3fn
SIZES = st.sampled_from([1, 2, 3, 64, 96, 128])

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**70, 0.5, float("nan"), "BSD", "trn3", "", (), ((0,),), ((0, 1), (2,)), [[0]], (0, 1), b"x"]),
    st.sampled_from([ACROSS_HEADS, QKVOutputLayout.NBSd, NormType, QKNormConfig(), QKNormConfig(ACROSS_HEADS, None)]),
    st.builds(
        QKNormConfig,
        st.sampled_from([None, ACROSS_HEADS, "rms"]),
        st.sampled_from([None, ACROSS_HEADS, 1]),
        st.sampled_from([1e-6, 0.0, "eps", 10**400]),
    ),
    st.just(np.zeros((1, 4), np.float32)),
)
choices = st.sampled_from(
    [
        Choice(1, 1),
        Choice(1, 0, Flow(chunk_buffers=3, scalar_every=2)),
        Choice(1, 1, Flow(early=True, kept_tiles=1)),
        Choice(1, 0, Flow(early=True, pass_buffers=1, scalar_every=1)),
        Choice(2, 0),
    ]
)
"""Of calls of one S-tile and H-tile, with norm and without, and one that suits none."""

dtypes = st.sampled_from(
    [FP8, torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.complex64]
)


@st.composite
def tensors(draw):
    """Tensors of few elements, of all kinds that a caller may hold."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 6, 33, 64, 128, 192, 384]), max_size=4))
    while np.prod(shape) > 2**15:
        shape[shape.index(max(shape))] = 1
    tensor = torch.full(shape, draw(st.sampled_from([0.0, 1.0, -1.0, 1e-30, torch.nan, torch.inf]))).to(draw(dtypes))
    change = draw(st.sampled_from(["none", "none", "meta", "sparse", "grad", "transposed", "parameter"]))
    if change == "meta":
        return tensor.to("meta")
    if change == "sparse" and tensor.dtype == torch.float32 and tensor.dim():
        return tensor.to_sparse()
    if change == "parameter" and tensor.is_floating_point():
        return torch.nn.Parameter(tensor)
    return tensor.movedim(0, -1) if change == "transposed" and tensor.dim() > 1 else tensor


@st.composite
def calls(draw):
    """A right call of random sizes, of which up to three arguments are replaced."""
    batch, seqlen, heads, kv_heads = (draw(st.integers(low, 3)) for low in (1, 1, 1, 0))
    head_dim, hidden, lnc = draw(SIZES), 128 * draw(st.integers(1, 2)), draw(st.sampled_from([1, 2]))
    width = (heads + 2 * kv_heads) * head_dim
    norm, rope = draw(st.booleans()), draw(st.booleans())
    channel = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    codes, scales = row_mx.quantise_columns(torch.randn(hidden, width))
    call = {
        "packed_hidden": row_mx.row_quantise_packed(torch.randn(batch, seqlen, hidden)),
        "weight": row_mx.pack_weight(codes),
        "weight_scales": scales,
        "bias": draw(st.sampled_from([None, torch.ones(1, width, dtype=channel)])),
        "num_heads": heads,
        "head_dim": head_dim,
        "num_kv_heads": kv_heads,
        "fused_rope": rope,
        "norm_eps": 1e-6,
        "output_layout": draw(st.sampled_from(QKVOutputLayout)),
        "replica_groups": None,
        "lnc": lnc,
        "target": "trn3",
    }
    if rope:
        call |= {name: torch.ones(batch, seqlen, head_dim, dtype=channel) for name in ("cos_cache", "sin_cache")}
    if norm:
        call["qk_norm_pre_rope"] = QKNormConfig(ACROSS_HEADS, ACROSS_HEADS if kv_heads else None)
        call["qk_norm_pre_rope_q_gamma"] = torch.ones(1, heads * head_dim, dtype=channel)
        if kv_heads:
            call["qk_norm_pre_rope_k_gamma"] = torch.ones(1, kv_heads * head_dim, dtype=channel)
    call["choice"] = draw(st.none() | st.none() | choices)
    names = st.sampled_from([*call, "cos_cache", "qk_norm_pre_rope", "qk_norm_pre_rope_k_gamma"])
    return call | draw(st.dictionaries(names, st.one_of(anything, tensors()), max_size=3))


def test_a_call_runs_or_is_refused():
    ended: Counter[str] = Counter()

    @settings(max_examples=400, deadline=None, derandomize=True)
    @given(calls())
    def end(call):
        ended[how_it_ends(call)] += 1

    end()
    assert ended["ran"] > 40
    assert ended["refused"] > 100


def how_it_ends(call):
    try:
        result = row_mx_qkv_proj(**call)
    except (ValueError, TypeError):
        return "refused"
    batch, seqlen, _ = call["packed_hidden"].shape
    heads = call["num_heads"] + 2 * call["num_kv_heads"]
    expected: tuple[int, ...] = (batch, seqlen, heads * call["head_dim"])
    if call["output_layout"] is QKVOutputLayout.NBSd:
        expected = (heads, batch, seqlen, call["head_dim"])
    assert tuple(result.shape) == expected
    assert result.dtype is torch.bfloat16
    assert result.isfinite().all()
    return "ran"
