"""Bad arguments of general calls: refused by name, before anything runs."""

import dataclasses
import functools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
from kernels.qkv_cte.host.entry import qkv
from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QKVOutputLayout, QuantizationType
from kernels.qkv_cte.host.qkv_arguments import QKVArguments
from kernels.qkv_cte.oracle.qkv_cases import QKVCase, random_call

N, Q = NormType, QuantizationType
ACROSS = QKNormConfig(N.RMS_NORM_ACROSS_HEADS)
HEADS = QKNormConfig(N.RMS_NORM, N.RMS_NORM)

WRONG_NORMS = [QKNormConfig(*values) for values in (("rms",), (1, 2, 3))]

PLAIN = QKVCase("plain", 100, 256, 2, 1, 64, bias=True, lnc=2)
FULL = QKVCase(
    "full", 100, 256, 2, 1, 64, bias=True, residuals=2, norm=N.LAYER_NORM, rope=True, own_k_caches=True,
    pre=HEADS, post=QKNormConfig(N.LAYER_NORM, N.LAYER_NORM), cache="blocks", cache_dtype=torch.float8_e4m3fn,
    sums=("q", "k", "v"),
)  # fmt: skip
FLAT = QKVCase("flat", 100, 256, 2, 1, 64, cache="flat")
MXFP8 = QKVCase("mxfp8", 100, 256, 2, 1, 64, quantization=Q.MXFP8)
ROW_MX = QKVCase("row_mx", 100, 256, 2, 1, 64, quantization=Q.ROW_MX)
NORM_ACROSS = QKVCase("across", 100, 256, 2, 1, 64, pre=ACROSS, rope=True)


@functools.cache
def arguments(case):
    return dict(vars(random_call(case)))


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def with_value(tensor, index, value):
    changed = tensor.clone()
    changed[index] = value
    return changed


REFUSALS = [
    (PLAIN, {"input": None}, TypeError, "input is a NoneType; accepted: a torch tensor [B, S, H] torch.bfloat16 or"),
    (PLAIN, {"input": zeros(1, 256)}, ValueError, "input is [1, 256]; accepted: [B, S, H]"),
    (PLAIN, {"input": zeros(1, 0, 256)}, ValueError, "input is [1, 0, 256], which is empty"),
    (PLAIN, {"input": zeros(1, 99, 256)}, ValueError, "seqlen is 99 on 2 cores; accepted: a multiple of 2"),
    (PLAIN, {"input": torch.empty(1, 100, 256, device="meta")}, ValueError, "input is on device meta"),
    (
        PLAIN,
        {"fused_qkv_weights": zeros(256, 255)},
        ValueError,
        "fused_qkv_weights is [256, 255]; accepted: [256, 256]",
    ),
    (PLAIN, {"fused_qkv_weights": zeros(256, 256, dtype=torch.int8)}, TypeError, "fused_qkv_weights is torch.int8"),
    (PLAIN, {"num_q_heads": 0}, ValueError, "num_q_heads must be at least 1, got 0"),
    (PLAIN, {"num_q_heads": 2.0}, TypeError, "num_q_heads must be an integer, got 2.0"),
    (PLAIN, {"d_head": -64}, ValueError, "d_head must be at least 1, got -64"),
    (PLAIN, {"bias": zeros(1, 255)}, ValueError, "bias is [1, 255]; accepted: [1, 256]"),
    (PLAIN, {"bias": torch.full((1, 256), torch.inf)}, ValueError, "bias has inf at [0, 0]; accepted: finite values"),
    (PLAIN, {"output_layout": "BSD"}, TypeError, "output_layout is 'BSD'; accepted: QKVOutputLayout.BSD"),
    (PLAIN, {"output_layout": QKVOutputLayout.NBSd}, ValueError, "d_head is 64; accepted with QKVOutputLayout.NBSd"),
    (PLAIN, {"quantization_type": "none"}, TypeError, "quantization_type is 'none'; accepted: QuantizationType.NONE"),
    (PLAIN, {"qkv_w_scale": zeros(1, 256)}, ValueError, "qkv_w_scale is given without quantization_type"),
    (PLAIN, {"fused_residual_add": True}, ValueError, "mlp_prev and attention_prev are None"),
    (PLAIN, {"fused_residual_add": 1}, TypeError, "fused_residual_add is 1; accepted: True or False"),
    (PLAIN, {"mlp_prev": zeros(1, 100, 256)}, ValueError, "mlp_prev is given without fused_residual_add"),
    (PLAIN, {"gamma_norm_weights": zeros(1, 256)}, ValueError, "gamma_norm_weights is given without fused_norm_type"),
    (PLAIN, {"fused_norm_type": N.RMS_NORM}, ValueError, "gamma_norm_weights is None; accepted with fused_norm_type"),
    (PLAIN, {"fused_norm_type": N.RMS_NORM_ACROSS_HEADS}, ValueError, "fused_norm_type is <NormType.RMS_NORM_ACROSS"),
    (PLAIN, {"fused_norm_type": None}, TypeError, "fused_norm_type is None; accepted: NormType.NO_NORM"),
    (PLAIN, {"norm_eps": 0.0}, ValueError, "norm_eps is 0.0; accepted: a finite number above 0"),
    (PLAIN, {"norm_eps": 1e-39}, ValueError, "norm_eps is 1e-39; accepted: 1.18e-38 to 3.4e+38, the normal fp32"),
    (PLAIN, {"norm_eps": 1e39}, ValueError, "norm_eps is 1e+39; accepted: 1.18e-38 to 3.4e+38, the normal fp32"),
    (PLAIN, {"bias": torch.ones(1, 256, device="meta")}, ValueError, "bias is on meta; accepted: cpu, where the activ"),
    (PLAIN, {"hidden_actual": 257}, ValueError, "hidden_actual is 257 with input [1, 100, 256]; accepted: up to 256"),
    (PLAIN, {"hidden_actual": 0}, ValueError, "hidden_actual must be at least 1, got 0"),
    (PLAIN, {"fused_rope": True}, ValueError, "cos_cache is None; accepted with fused_rope: [1, 100, 64]"),
    (PLAIN, {"sin_cache": zeros(1, 100, 64)}, ValueError, "sin_cache is given without fused_rope"),
    (PLAIN, {"qk_norm_pre_rope": N.RMS_NORM}, TypeError, "qk_norm_pre_rope is a NormType; accepted: QKNormConfig"),
    (PLAIN, {"qk_norm_pre_rope": WRONG_NORMS[0]}, TypeError, "qk_norm_pre_rope.q_norm is 'rms'"),
    (PLAIN, {"qk_norm_pre_rope": HEADS}, ValueError, "qk_norm_pre_rope_q_gamma is None; accepted with"),
    (PLAIN, {"qk_norm_post_rope": ACROSS}, ValueError, "qk_norm_post_rope.q_norm is NormType.RMS_NORM_ACROSS_HEADS"),
    (PLAIN, {"qk_norm_pre_rope": QKNormConfig(N.RMS_NORM_ACROSS_HEADS, N.RMS_NORM)}, ValueError, "accepted: both"),
    (PLAIN, {"k_cache": zeros(1, 100, 64)}, TypeError, "k_cache is torch.float32; accepted: [1, 100 or more, 64]"),
    (PLAIN, {"k_cache": zeros(1, 100, 64, dtype=torch.bfloat16)}, TypeError, "v_cache is a NoneType"),
    (PLAIN, {"slot_mapping": zeros(1, 100, dtype=torch.int32)}, ValueError, "slot_mapping is given without k_cache"),
    (PLAIN, {"use_block_kv": True}, ValueError, "use_block_kv is True without k_cache and v_cache"),
    (PLAIN, {"q_squared_sum_out": zeros(100)}, ValueError, "q_squared_sum_out is [100]; accepted: [1, 100]"),
    (PLAIN, {"q_squared_sum_out": zeros(100, 1).T.expand(1, 100)[:, ::1]}, None, ""),
    (PLAIN, {"q_squared_sum_out": zeros(1, 200)[:, ::2]}, ValueError, "q_squared_sum_out has strides [200, 2]"),
    (
        PLAIN,
        {"replica_groups": [[0, 1]]},
        TypeError,
        "replica_groups is [[0, 1]]; accepted: None or equally long tuple",
    ),
    (
        NORM_ACROSS,
        {"replica_groups": ((0, 1),)},
        ValueError,
        "replica_groups is ((0, 1),) and torch.distributed is not initialised; accepted: None, a gloo process group "
        "(torch.distributed.init_process_group), or all ranks at once in qkv_ranks",
    ),
    (NORM_ACROSS, {"qk_norm_pre_rope_q_gamma": zeros(1, 64)}, ValueError, "qk_norm_pre_rope_q_gamma is [1, 64]; accep"),
    (NORM_ACROSS, {"k_cache": zeros(1, 100, 64)}, ValueError, "k_cache is given; accepted with a norm across heads"),
    (NORM_ACROSS, {"qk_norm_post_rope": HEADS}, ValueError, "qk_norm_post_rope is given; accepted with a norm across"),
    (FULL, {"attention_prev": zeros(1, 100, 256)}, TypeError, "attention_prev is torch.float32; accepted: [1, 100"),
    (FULL, {"layer_norm_bias": torch.full((1, 256), torch.nan)}, ValueError, "layer_norm_bias has nan at [0, 0]"),
    (FULL, {"sin_cache": zeros(1, 100, 64, dtype=torch.bfloat16)}, TypeError, "sin_cache is torch.bfloat16; accepted"),
    (FULL, {"k_sin_cache": None}, ValueError, "one of k_cos_cache and k_sin_cache is None; accepted: both or none"),
    (FULL, {"qk_norm_pre_rope_k_beta": zeros(1, 64)}, ValueError, "qk_norm_pre_rope_k_beta is given without qk_norm"),
    (FULL, {"qk_norm_post_rope_k_gamma": zeros(1, 65)}, ValueError, "qk_norm_post_rope_k_gamma is [1, 65]; accepted"),
    (FULL, {"qk_norm_post_rope": QKNormConfig(eps=-1.0)}, ValueError, "qk_norm_post_rope.eps is -1.0"),
    (FULL, {"k_scale": 0.0}, ValueError, "k_scale is 0.0; accepted: a finite number above 0"),
    (FULL, {"k_scale": 1e-39}, ValueError, "k_scale is 1e-39; accepted: 1.18e-38 to 3.4e+38, the normal fp32"),
    (FULL, {"v_scale": torch.tensor([1e-39])}, ValueError, "accepted: from 1.18e-38, whose reciprocal is finite"),
    (FULL, {"k_scale": None}, ValueError, "k_scale is None; accepted with caches of an fp8 type"),
    (FULL, {"v_scale": torch.tensor([torch.nan])}, ValueError, "v_scale must be finite and positive"),
    (FULL, {"v_scale": torch.ones(2)}, TypeError, "v_scale is [2] torch.float32; accepted: a number, or a float32"),
    (FULL, {"fp8_max": 449.0}, ValueError, "fp8_max is 449.0; accepted: -448.0 to 448.0"),
    (FULL, {"fp8_min": 448.0}, ValueError, "fp8_min is 448.0 and fp8_max 448.0; accepted: fp8_min below fp8_max"),
    (FULL, {"block_size": 15}, ValueError, "block_size is 15; accepted: 16, as in k_cache"),
    (
        FULL,
        {"slot_mapping": None},
        ValueError,
        "slot_mapping is None; accepted with use_block_kv: [1, 100] torch.int32",
    ),
    (FULL, {"slot_mapping": zeros(1, 100, dtype=torch.int64)}, TypeError, "slot_mapping is torch.int64; accepted"),
    (FULL, {"slot_mapping": zeros(1, 100, dtype=torch.int32)}, ValueError, "slot_mapping has 0 more than once"),
    (FULL, {"slot_mapping": torch.full((1, 100), 10**6, dtype=torch.int32)}, ValueError, "slot_mapping has 1000000 at"),
    (FULL, {"num_kv_heads": 0, "num_q_heads": 4}, ValueError, "k_cos_cache is given; accepted with num_kv_heads = 0"),
    (FLAT, {"k_scale": 1.0}, ValueError, "k_scale is given without caches of an fp8 type"),
    (FLAT, {"v_cache": zeros(1, 103, 65, dtype=torch.bfloat16)}, ValueError, "v_cache is [1, 103, 65]; accepted"),
    (FLAT, {"k_cache": zeros(1, 99, 64, dtype=torch.bfloat16)}, ValueError, "k_cache is [1, 99, 64]; accepted"),
    (MXFP8, {"qkv_w_scale": None}, TypeError, "qkv_w_scale is a NoneType; accepted: a torch tensor [8, 256] torch.flo"),
    (
        MXFP8,
        {"qkv_w_scale": zeros(7, 256, dtype=torch.uint8)},
        ValueError,
        "qkv_w_scale is [7, 256]; accepted: [8, 256]",
    ),
    (
        MXFP8,
        {"qkv_w_scale": with_value(zeros(8, 256, dtype=torch.uint8), (3, 5), 255)},
        ValueError,
        "qkv_w_scale has a NaN at block 3, channel 5; accepted: finite scales",
    ),
    (MXFP8, {"hidden_actual": 200}, ValueError, "hidden_actual is 200 with input [1, 100, 256]; accepted: 256 or None"),
    (MXFP8, {"fused_qkv_weights": zeros(256, 256)}, TypeError, "fused_qkv_weights is torch.float32; accepted: [H / 4"),
    (ROW_MX, {"qkv_w_scale": torch.full((1, 256), -1.0)}, ValueError, "qkv_w_scale [1, channel] must be finite and"),
    (ROW_MX, {"fused_norm_type": N.RMS_NORM}, ValueError, "accepted with ROW_MX: none of them"),
    (ROW_MX, {"mlp_prev": zeros(1)}, ValueError, "mlp_prev is given without fused_residual_add or fused_norm_type"),
    (ROW_MX, {"input": zeros(1, 100, 256)}, TypeError, "input is torch.float32; accepted: [B, S, H + 4] torch.float8"),
]


@pytest.mark.parametrize(("case", "changes", "error", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_refusal(case, changes, error, message, monkeypatch):
    given_arguments = arguments(case) | changes
    if error is None:
        qkv(**given_arguments, target="trn3", lnc=case.lnc)
        return
    monkeypatch.setattr(nki, "simulate", lambda _: pytest.fail("it ran"))
    with pytest.raises(error, match=re.escape(message)):
        qkv(**given_arguments, target="trn3", lnc=case.lnc)


@pytest.mark.parametrize(
    ("case", "target", "lnc", "message"),
    [
        (MXFP8, "trn2", 1, "target is 'trn2'; accepted: 'trn3'"),
        (ROW_MX, "trn2", 1, "target is 'trn2'; accepted: 'trn3'"),
        (PLAIN, "trn1", 1, "target must be 'trn2' or 'trn3', got 'trn1'"),
        (PLAIN, "trn3", 3, "lnc is 3; accepted: 1 or 2"),
        (PLAIN, "trn3", 0, "lnc is 0; accepted: 1 or 2"),
        (FULL, "trn2", 1, "k_cache is torch.float8_e4m3fn; accepted"),
    ],
)
def test_targets(case, target, lnc, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        qkv(**arguments(case), target=target, lnc=lnc)


def test_unknown_and_missing_arguments_are_named():
    with pytest.raises(TypeError, match=r"^qkv has no argument 'kv_dtype'; accepted: input, .*, choice$"):
        qkv(**arguments(PLAIN), kv_dtype=torch.float16)
    call = {name: value for name, value in arguments(PLAIN).items() if name != "d_head"}
    with pytest.raises(TypeError, match=r"^qkv is called without d_head; accepted: with input, .*d_head"):
        qkv(**call)


def test_what_is_written_shares_no_memory():
    flat = arguments(FLAT)
    with pytest.raises(ValueError, match="k_cache shares memory with v_cache; accepted: memory of its own"):
        qkv(**flat | {"v_cache": flat["k_cache"]}, lnc=1)
    rows = torch.zeros(300)
    overlapping = {"q_squared_sum_out": rows[None, :100], "k_squared_sum_out": rows[None, 99:199]}
    with pytest.raises(ValueError, match="q_squared_sum_out shares memory with k_squared_sum_out"):
        qkv(**arguments(PLAIN) | overlapping)
    scales = {"bias": rows[None, :256], "v_squared_sum_out": rows[None, 200:]}
    with pytest.raises(ValueError, match="v_squared_sum_out shares memory with bias"):
        qkv(**arguments(PLAIN) | scales)


def test_heads_that_cores_cannot_share():
    """One head, one token, two cores: there is nothing to split."""
    case = QKVCase("one", 1, 128, 1, 0, 64, pre=QKNormConfig(N.RMS_NORM))
    with pytest.raises(ValueError, match="lnc is 2 with 64 output columns that only divide into 64; accepted: 1"):
        qkv(**arguments(case), lnc=2)


def test_heads_wider_than_a_bank():
    case = QKVCase("wide", 100, 128, 1, 0, 514, rope=True)
    with pytest.raises(ValueError, match="d_head is 514; accepted with RoPE or norms of single heads: up to 512"):
        qkv(**arguments(case), lnc=1)


def test_what_fits_nowhere_is_refused():
    case = QKVCase("big", 100, 70_000, 1, 0, 2)
    with pytest.raises(ValueError, match=r"input of H = 70000 and fused_qkv_weights of I = 2: .* of 245,752 B"):
        qkv(**arguments(case), lnc=1)


FIELDS = [field.name for field in dataclasses.fields(QKVArguments)]
ODD_VALUES = (
    None, True, False, 0, 1, -1, 2, 64, 2**70, 0.5, float("nan"), "x", (), [], [[0]], ((0,),), ((0, 1), (2, 3)),
    object(), ACROSS, HEADS, QKNormConfig(None, N.LAYER_NORM, 1e300), *WRONG_NORMS, *N, *Q, *QKVOutputLayout,
    torch.zeros(()), torch.zeros(1, 64), torch.zeros(1, 256), torch.zeros(0), torch.ones(1, 100, 64),
    torch.ones(1, 100, 256, dtype=torch.float16), torch.full((1, 100, 256), torch.nan), torch.ones(256, 256),
    torch.ones(256, 1).expand(256, 256), torch.ones(1, 100, dtype=torch.int32), torch.ones(100, 1).T,
    torch.ones(1, 100), torch.ones(64, 256, 4).to(torch.float8_e4m3fn), torch.ones(8, 256, dtype=torch.uint8),
    torch.ones(2, 2).to_sparse(), torch.ones(7, 16, 64, dtype=torch.bfloat16),
    torch.ones(7, 16, 64).to(torch.float8_e5m2), torch.ones(1, 100, device="meta"),
)  # fmt: skip


@settings(max_examples=400, derandomize=True, deadline=None, database=None)
@given(
    case=st.sampled_from([PLAIN, FULL, FLAT, MXFP8, ROW_MX, NORM_ACROSS]),
    changes=st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(ODD_VALUES), max_size=3),
    moved=st.none() | st.tuples(st.sampled_from(FIELDS), st.sampled_from(FIELDS)),
    target=st.sampled_from(["trn2", "trn3", None]),
    lnc=st.sampled_from([1, 2, 0, "2"]),
)
def test_any_arguments_run_or_are_refused(case, changes, moved, target, lnc):
    """With a ValueError or a TypeError, and nothing else."""
    call = arguments(case) | changes
    if moved is not None:
        call[moved[0]] = call[moved[1]]
    call = {name: value.clone() if is_written(name, value) else value for name, value in call.items()}
    try:
        qkv(**call, target=target, lnc=lnc)
    except (ValueError, TypeError) as refusal:
        assert type(refusal) in (ValueError, TypeError)  # noqa: PT017 - no subclass of the simulator's
        assert len(str(refusal)) > 10  # noqa: PT017 - and it says something


def is_written(name, value):
    return isinstance(value, torch.Tensor) and (name in ("k_cache", "v_cache") or name.endswith("_sum_out"))
