"""The shim: what it returns, and what it refuses before anything runs."""

import dataclasses
import inspect
import os
from typing import Any, cast

import pytest
import torch

import nki
from common import row_mx
from common.platform_target import TARGET_VARIABLE
from kernels.qkv_cte import Choice, NormType, QKNormConfig, QKVOutputLayout, row_mx_qkv_proj, row_mx_qkv_proj_ranks
from kernels.qkv_cte.device.config import Flow
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.host import shim
from kernels.qkv_cte.oracle import cases, compare, reference
from kernels.qkv_cte.oracle.cases import Case

CASE = Case("shim", 6, 256, 2, "full", num_kv_heads=1, head_dim=96, lnc=2)
ACROSS_HEADS = NormType.RMS_NORM_ACROSS_HEADS


def arguments(case=CASE, **changes):
    operands = cases.normal_operands(case)
    return {
        "packed_hidden": operands.packed_hidden,
        "weight": operands.weight,
        "weight_scales": operands.weight_scales,
        "bias": operands.bias,
        "num_heads": case.num_heads,
        "head_dim": case.head_dim,
        "num_kv_heads": case.num_kv_heads,
        **changes,
    }


def operands_of(call):
    return call["packed_hidden"], call["weight"], call["weight_scales"], call["bias"]


def norm_arguments(**changes):
    return {
        "qk_norm_pre_rope": QKNormConfig(q_norm=ACROSS_HEADS, k_norm=ACROSS_HEADS, eps=1e-6),
        "qk_norm_pre_rope_q_gamma": torch.ones(1, 192),
        "qk_norm_pre_rope_k_gamma": torch.ones(1, 96),
        **changes,
    }


def rope_arguments(**changes):
    return {"fused_rope": True, "cos_cache": torch.ones(1, 6, 96), "sin_cache": torch.zeros(1, 6, 96), **changes}


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("bias_dtype", [None, torch.bfloat16, torch.float32])
def test_projects(lnc, bias_dtype):
    call = arguments(dataclasses.replace(CASE, bias_dtype=bias_dtype))
    result = row_mx_qkv_proj(**call, lnc=lnc, target="trn3")
    errors = compare.compare(result, *operands_of(call))
    assert errors.wrong_nonfinite == 0
    assert errors.max_ulps <= compare.MAX_ULPS


def test_the_first_four_are_positional_and_lnc_is_2():
    call = arguments()
    hidden, weight, scales, bias = operands_of(call)
    by_position = row_mx_qkv_proj(hidden, weight, scales, bias, num_heads=2, head_dim=96, num_kv_heads=1)
    assert torch.equal(by_position, row_mx_qkv_proj(**call, lnc=2))


def test_interface_is_the_seeds():
    names = list(inspect.signature(row_mx_qkv_proj).parameters)
    assert names == [
        "packed_hidden",
        "weight",
        "weight_scales",
        "bias",
        "num_heads",
        "head_dim",
        "num_kv_heads",
        "fused_rope",
        "cos_cache",
        "sin_cache",
        "qk_norm_pre_rope",
        "qk_norm_pre_rope_q_gamma",
        "qk_norm_pre_rope_k_gamma",
        "norm_eps",
        "replica_groups",
        "output_layout",
        "choice",
        "target",
        "lnc",
    ]
    assert [layout.name for layout in QKVOutputLayout] == ["BSD", "NBSd"]


def test_views_and_parameters_are_taken():
    """A slice of a larger batch, weights that came transposed, and parameters that want gradients."""
    call = arguments(dataclasses.replace(CASE, batch=2))
    expected = row_mx_qkv_proj(**{**call, "packed_hidden": call["packed_hidden"][1:].clone()})
    wide = torch.zeros(2, 6, 300).to(torch.float8_e4m3fn)
    wide[:, :, 9 : 9 + 260] = call["packed_hidden"]
    call["packed_hidden"] = wide[1:, :, 9 : 9 + 260]
    call["weight"] = call["weight"].transpose(0, 1).contiguous().transpose(0, 1)
    call["bias"] = torch.nn.Parameter(call["bias"])
    result = row_mx_qkv_proj(**call)
    assert not result.requires_grad
    assert torch.equal(result, expected)


def test_the_kernel_gets_dense_tensors(monkeypatch):
    monkeypatch.setattr(nki, "simulate", lambda _: lambda **operands: operands)
    call = arguments()
    for name in ("packed_hidden", "weight", "weight_scales", "bias"):
        call[name] = torch.stack([call[name], call[name]], dim=-1)[..., 0]
        assert not call[name].is_contiguous()
    operands = row_mx_qkv_proj(**call)
    for name, given in zip(("packed_hidden", "weight", "weight_scales", "bias"), operands_of(call), strict=True):
        tensor = operands[name]
        assert tensor.is_contiguous()
        assert torch.equal(tensor.view(torch.uint8), given.contiguous().view(torch.uint8))


def test_a_choice_is_how_the_call_runs(monkeypatch):
    """What a plan's choice says reaches the kernel, and the values are those of the sizes, whatever it is."""
    case = Case("choice", 270, 1152, 2, "full", num_kv_heads=1, lnc=2)
    call = arguments(case, **norm_arguments(qk_norm_pre_rope_q_gamma=torch.ones(1, 256)))
    call["qk_norm_pre_rope_k_gamma"] = torch.ones(1, 128)
    choice = Choice(1, 1, Flow(early=True, kept_tiles=1, pass_buffers=1, chunk_buffers=3, scalar_every=2))
    expected, found = row_mx_qkv_proj(**call), row_mx_qkv_proj(**call, choice=choice)
    assert not torch.equal(found, expected)
    assert (found.double() - expected.double()).norm() < 2.0**-8 * expected.double().norm()
    assert torch.equal(found[..., 384:], expected[..., 384:])
    monkeypatch.setattr(nki, "simulate", lambda _: lambda **operands: operands)
    config = row_mx_qkv_proj(**call, choice=choice)["config"]
    assert (config.blocks[0].num_tiles, config.resident_h_tiles, config.chunk_buffers) == (1, 1, 3)
    assert config.flow == choice.flow
    assert Choice.from_integers(choice.integers()) == choice


def test_channels_that_are_broadcast_already_are_taken():
    call = arguments()
    wide = {**call, "weight_scales": call["weight_scales"].repeat(128, 1), "bias": call["bias"].expand(128, -1)}
    assert torch.equal(row_mx_qkv_proj(**wide), row_mx_qkv_proj(**call))


def test_tail_bytes_that_look_like_nan_codes_are_taken():
    call = arguments()
    codes, scales = row_mx.unpack_rows(call["packed_hidden"])
    scales[:] = torch.tensor([0x3F7F7F7F], dtype=torch.int32).view(torch.float32)
    call["packed_hidden"] = row_mx.pack_rows(codes, scales)
    errors = compare.compare(row_mx_qkv_proj(**call), *operands_of(call))
    assert errors.max_ulps <= compare.MAX_ULPS


@pytest.mark.parametrize("before", [None, "trn2", "gen4"])
def test_environment_is_restored(before, monkeypatch):
    if before is None:
        monkeypatch.delenv(TARGET_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(TARGET_VARIABLE, before)
    row_mx_qkv_proj(**arguments())
    assert os.environ.get(TARGET_VARIABLE) == before


def test_environment_is_restored_after_an_error(monkeypatch):
    seen = []

    def fails(kernel):
        assert kernel.function is row_mx_projection.function
        assert kernel.lnc == 2

        def simulated(**operands):
            seen.append(os.environ[TARGET_VARIABLE])
            raise RuntimeError("mid-run")

        return simulated

    monkeypatch.setenv(TARGET_VARIABLE, "trn2")
    monkeypatch.setattr(nki, "simulate", fails)
    with pytest.raises(RuntimeError, match="mid-run"):
        row_mx_qkv_proj(**arguments())
    assert seen == ["trn3"]
    assert os.environ[TARGET_VARIABLE] == "trn2"


class DeviceTensor(torch.Tensor):
    """A tensor on a device whose values nobody may look at."""

    @staticmethod
    def __new__(cls, host):
        return torch.Tensor._make_wrapper_subclass(cls, host.shape, dtype=host.dtype, device="lazy")

    def __init__(self, host):
        self.host = host

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        assert str(function) in ("aten.slice.Tensor", "aten.detach.default"), f"{function} on the device"
        return cls(function(*(arg.host if isinstance(arg, cls) else arg for arg in args), **(kwargs or {})))


def test_other_devices_get_the_kernel_itself(monkeypatch):
    class Launched:
        def __getitem__(self, lnc):
            return lambda **operands: (lnc, operands)

    monkeypatch.setattr(shim, "ENTRY", dataclasses.replace(shim.ENTRY, kernel=Launched()))
    monkeypatch.setattr(nki, "simulate", lambda _: pytest.fail("simulated"))
    call = arguments()
    on_device = {name: DeviceTensor(value) if torch.is_tensor(value) else value for name, value in call.items()}
    lnc, operands = row_mx_qkv_proj(**on_device, lnc=1)
    assert lnc == 1
    names = ("packed_hidden", "weight", "weight_scales", "bias")
    assert [operands[name].host.shape for name in names] == [tensor.shape for tensor in operands_of(call)]
    assert operands["config"] == dataclasses.replace(CASE, lnc=1).plan.config
    with pytest.raises(ValueError, match="weight is on cpu; accepted: lazy, where the activations are"):
        row_mx_qkv_proj(**{**on_device, "weight": call["weight"]})
    with pytest.raises(ValueError, match="packed_hidden of rank 0 is on lazy; accepted: cpu"):
        row_mx_qkv_proj_ranks([on_device])


def random(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.5


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_normalises_and_rotates(lnc, rope, eps):
    """Against the formula on the projection that the shim itself gives without them."""
    call = arguments(dataclasses.replace(CASE, batch=2))
    q, k, v = row_mx_qkv_proj(**call, lnc=lnc).split([192, 96, 96], -1)
    q_gamma, k_gamma, cos, sin = random(1, 192), random(1, 96), random(2, 6, 96), random(2, 6, 96)
    q, k = reference.rms_norm(q, q_gamma, eps), reference.rms_norm(k, k_gamma, eps)
    asked = norm_arguments(
        qk_norm_pre_rope=QKNormConfig(ACROSS_HEADS, ACROSS_HEADS, eps=eps),
        qk_norm_pre_rope_q_gamma=q_gamma.T.contiguous().T,
        qk_norm_pre_rope_k_gamma=k_gamma,
        norm_eps=0.25,
    )
    if rope:
        q, k = reference.rope(q, cos, sin), reference.rope(k, cos, sin)
        asked |= rope_arguments(cos_cache=cos, sin_cache=sin.transpose(0, 1).contiguous().transpose(0, 1))
    result = row_mx_qkv_proj(**call, **asked, lnc=lnc)
    torch.testing.assert_close(result[..., :288].double(), torch.cat([q, k], -1), rtol=2.0**-8, atol=1e-5)
    assert torch.equal(result[..., 288:], v)


def test_rope_alone():
    call = arguments()
    q, k, v = row_mx_qkv_proj(**call).split([192, 96, 96], -1)
    cos, sin = random(1, 6, 96), random(1, 6, 96) - 1
    result = row_mx_qkv_proj(**call, **rope_arguments(cos_cache=cos, sin_cache=sin))
    turned = torch.cat([reference.rope(q, cos, sin), reference.rope(k, cos, sin), v.double()], -1)
    torch.testing.assert_close(result.double(), turned, rtol=2.0**-8, atol=1e-5)


def test_k_without_a_norm_is_left_as_it_is():
    call = arguments()
    projected = row_mx_qkv_proj(**call)
    asked = {
        "qk_norm_pre_rope": QKNormConfig(q_norm=ACROSS_HEADS),
        "qk_norm_pre_rope_q_gamma": random(1, 192),
    }
    result = row_mx_qkv_proj(**call, **asked)
    assert torch.equal(result[..., 192:], projected[..., 192:])
    assert not torch.equal(result[..., :192], projected[..., :192])


def test_a_single_segment_in_nbsd():
    """As cross-attention calls it: norm as Q, and V without one."""
    call = arguments(Case("cross", 6, 256, 3, "full", batch=2))
    projected = row_mx_qkv_proj(**call)
    heads_first = row_mx_qkv_proj(**call, output_layout=QKVOutputLayout.NBSd)
    assert heads_first.shape == (3, 2, 6, 128)
    assert torch.equal(heads_first, reference.nbsd(projected, 128))
    asked = {"qk_norm_pre_rope": QKNormConfig(q_norm=ACROSS_HEADS), "qk_norm_pre_rope_q_gamma": random(1, 384)}
    normalised = row_mx_qkv_proj(**call, **asked)
    heads_first = row_mx_qkv_proj(**call, **asked, output_layout=QKVOutputLayout.NBSd)
    assert torch.equal(heads_first, reference.nbsd(normalised, 128))
    expected = reference.rms_norm(projected, asked["qk_norm_pre_rope_q_gamma"], 1e-6)
    torch.testing.assert_close(normalised.double(), expected, rtol=2.0**-8, atol=1e-5)


def damaged(name, index, value):
    """The named operand with one element (of its bytes, for fp8) replaced."""
    tensor = arguments()[name].clone()
    bytes_of = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
    bytes_of[index] = value
    return {name: tensor}


def with_tail(index, value):
    codes, scales = row_mx.unpack_rows(arguments()["packed_hidden"])
    scales[index] = value
    tail = scales.contiguous().view(torch.uint8)
    return {"packed_hidden": torch.cat([codes.view(torch.uint8), tail], -1).view(torch.float8_e4m3fn)}


def with_128_rows(name):
    rows = arguments()[name].repeat(128, 1)
    rows[77, 5] += 1
    return {name: rows}


FP8 = torch.float8_e4m3fn
ROWS = torch.zeros(1, 6, 260).to(FP8)
JAGGED = torch.nested.nested_tensor([torch.ones(384)], layout=torch.jagged)
NEGATED = torch.ones(1, 384, dtype=torch.complex64).conj().imag
INF, NAN = float("inf"), float("nan")
PARAMETERS = [
    # Target and cores.
    ({"target": "trn2"}, ValueError, "target is 'trn2'; accepted: 'trn3'"),
    ({"target": "trn2", "packed_hidden": None}, ValueError, "target is 'trn2'; accepted: 'trn3'"),
    ({"target": "trn4"}, ValueError, "target must be 'trn2' or 'trn3', got 'trn4'"),
    ({"target": None}, ValueError, "target must be 'trn2' or 'trn3', got None"),
    ({"lnc": 0}, ValueError, "lnc is 0; accepted: 1 or 2"),
    ({"lnc": 3}, ValueError, "lnc is 3; accepted: 1 or 2"),
    ({"lnc": "2"}, TypeError, "lnc must be an integer, got '2'"),
    ({"lnc": True}, TypeError, "lnc must be an integer, got True"),
    # Heads.
    ({"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
    ({"num_heads": 2.0}, TypeError, "num_heads must be an integer, got 2.0"),
    ({"head_dim": 0}, ValueError, "head_dim must be at least 1, got 0"),
    ({"head_dim": None}, TypeError, "head_dim must be an integer, got None"),
    ({"num_kv_heads": -1}, ValueError, "num_kv_heads must be at least 0, got -1"),
    (
        {"num_heads": 3},
        ValueError,
        r"num_heads 3, num_kv_heads 1 and head_dim 96 give I = .* = 480; accepted: the I of weight .* which is 384",
    ),
    ({"num_kv_heads": 0}, ValueError, r"num_heads 2, num_kv_heads 0 and head_dim 96 give I = .* = 192"),
    # Activations.
    ({"packed_hidden": None}, TypeError, "packed_hidden is a NoneType; accepted: a torch tensor"),
    ({"packed_hidden": ROWS.float().numpy()}, TypeError, "packed_hidden is a ndarray; accepted: a torch tensor"),
    ({"packed_hidden": ROWS.float()}, TypeError, "packed_hidden is torch.float32; accepted: .* torch.float8_e4m3fn"),
    ({"packed_hidden": ROWS.to(torch.float8_e5m2)}, TypeError, "packed_hidden is torch.float8_e5m2; accepted"),
    ({"packed_hidden": ROWS[0]}, ValueError, r"packed_hidden is \[6, 260\]; accepted: \[B, S, H \+ 4\]"),
    ({"packed_hidden": ROWS[:, :0]}, ValueError, r"packed_hidden is \[1, 0, 260\], which is empty; accepted"),
    ({"packed_hidden": ROWS[:, :, :4]}, ValueError, r"packed_hidden is \[1, 6, 4\]; accepted: \[B, S, H \+ 4\], H"),
    ({"packed_hidden": ROWS.to("meta")}, ValueError, "packed_hidden is on device meta and has no values"),
    (
        {"packed_hidden": torch.zeros(1, 6, 204).to(FP8)},
        ValueError,
        r"packed_hidden is \[1, 6, 204\]; .*, H a multiple of 128 \(zero rows up to 256 would cost 28.0% more weights",
    ),
    (
        {"packed_hidden": row_mx.row_quantise_packed(torch.ones(1, 6, 200))},
        ValueError,
        r"packed_hidden is \[1, 6, 204\]; .*, H a multiple of 128 \(zero rows up to 256 would cost 28.0% more weights",
    ),
    (
        {"packed_hidden": row_mx.row_quantise_packed(torch.ones(1, 5, 256))},
        ValueError,
        r"packed_hidden is \[1, 5, 260\].*seqlen is 5 on 2 cores; accepted: a multiple of 2, padded by the caller",
    ),
    (
        {"packed_hidden": row_mx.row_quantise_packed(torch.ones(1, 6, 256))[..., :256]},
        ValueError,
        r"packed_hidden is \[1, 6, 256\]; accepted: \[B, S, H \+ 4\], .* H a multiple of 128",
    ),
    (
        {"packed_hidden": ROWS},
        ValueError,
        "row scales of packed_hidden .* must be finite and positive, got 0.0",
    ),
    (
        damaged("packed_hidden", (0, 4, 9), 0x7F),
        ValueError,
        "packed_hidden has a NaN code at batch 0, token 4, column 9",
    ),
    (damaged("packed_hidden", (0, 5, 255), 0xFF), ValueError, "packed_hidden has a NaN code at .* token 5, column 255"),
    *(
        (with_tail((0, 3, 0), value), ValueError, rf"row scales of packed_hidden \[batch, token\] .* {text} .*\[0, 3\]")
        for value, text in ((NAN, "nan"), (INF, "inf"), (-INF, "-inf"), (0.0, "0.0"), (-0.5, "-0.5"))
    ),
    # Weights.
    ({"weight": [1, 2]}, TypeError, "weight is a list; accepted: a torch tensor"),
    ({"weight": torch.zeros(64, 384, 4)}, TypeError, "weight is torch.float32; accepted: .* torch.float8_e4m3fn"),
    ({"weight": torch.zeros(64, 384).to(FP8)}, ValueError, r"weight is \[64, 384\]; accepted: \[H / 4, I, 4\]"),
    ({"weight": torch.zeros(64, 0, 4).to(FP8)}, ValueError, r"weight is \[64, 0, 4\], which is empty"),
    ({"weight": torch.zeros(256, 384, 1).to(FP8)}, ValueError, r"weight is \[256, 384, 1\]; accepted: \[64, I, 4\]"),
    ({"weight": torch.zeros(32, 384, 4).to(FP8)}, ValueError, r"weight is \[32, 384, 4\]; accepted: \[64, I, 4\]"),
    ({"weight": torch.zeros(64, 384, 4).to(FP8).to("meta")}, ValueError, "weight is on meta; accepted: cpu"),
    (damaged("weight", (63, 383, 3), 0xFF), ValueError, "weight has a NaN code at word 63, channel 383, lane 3"),
    # Column scales and bias.
    ({"weight_scales": None}, TypeError, "weight_scales is a NoneType"),
    ({"weight_scales": torch.ones(1, 384).bfloat16()}, TypeError, "weight_scales is torch.bfloat16; accepted"),
    ({"weight_scales": torch.ones(384)}, ValueError, r"weight_scales is \[384\]; accepted: \[1, I\]"),
    ({"weight_scales": torch.ones(384, 1)}, ValueError, r"weight_scales is \[384, 1\]; accepted: \[1, 384\]"),
    ({"weight_scales": torch.ones(2, 384)}, ValueError, r"weight_scales is \[2, 384\]; accepted: \[1, 384\]"),
    ({"weight_scales": torch.ones(1, 383)}, ValueError, r"weight_scales is \[1, 383\]; accepted: \[1, 384\]"),
    ({"weight_scales": torch.ones(1, 384, device="meta")}, ValueError, "weight_scales is on meta; accepted: cpu"),
    *(
        (damaged("weight_scales", (0, 211), value), ValueError, rf"weight_scales \[1, channel\] .* {text} .*\[0, 211\]")
        for value, text in ((NAN, "nan"), (INF, "inf"), (0.0, "0.0"), (-1.0, "-1.0"))
    ),
    (
        with_128_rows("weight_scales"),
        ValueError,
        "weight_scales has .* in row 77 and .* in row 0 at channel 5; accepted",
    ),
    ({"bias": 0.0}, TypeError, "bias is a float; accepted: a torch tensor"),
    ({"bias": torch.zeros(1, 384).half()}, TypeError, "bias is torch.float16; accepted: .*float32 or torch.bfloat16"),
    ({"bias": torch.zeros(384)}, ValueError, r"bias is \[384\]; accepted: \[1, I\]"),
    ({"bias": torch.zeros(1, 385)}, ValueError, r"bias is \[1, 385\]; accepted: \[1, 384\]"),
    ({"bias": torch.zeros(1, 0)}, ValueError, r"bias is \[1, 0\], which is empty"),
    (damaged("bias", (0, 7), NAN), ValueError, r"bias has nan at \[0, 7\]; accepted: finite values"),
    (damaged("bias", (0, 8), -INF), ValueError, r"bias has -inf at \[0, 8\]; accepted: finite values"),
    ({"bias": torch.zeros(1, 384).to_sparse()}, TypeError, "bias is torch.sparse_coo; accepted: a strided tensor"),
    ({"packed_hidden": ROWS.float().to_sparse()}, TypeError, "packed_hidden is torch.sparse_coo; accepted: a strided"),
    ({"bias": JAGGED}, TypeError, "bias is nested; accepted: a strided tensor"),
    ({"bias": NEGATED}, ValueError, r"bias is a negated view; accepted: its resolve_neg\(\)"),
    (with_128_rows("bias"), ValueError, "bias has .* in row 77 and .* in row 0 at channel 5; accepted"),
    # RoPE.
    ({"fused_rope": 1}, TypeError, "fused_rope is 1; accepted: True or False"),
    ({"cos_cache": torch.ones(1, 6, 96)}, ValueError, "cos_cache is given without fused_rope; accepted: None"),
    ({"sin_cache": torch.ones(1, 6, 96)}, ValueError, "sin_cache is given without fused_rope; accepted: None"),
    (rope_arguments(cos_cache=None), ValueError, r"cos_cache is None; accepted with fused_rope: \[1, 6, 96\]"),
    (rope_arguments(sin_cache=None), ValueError, r"sin_cache is None; accepted with fused_rope: \[1, 6, 96\]"),
    (rope_arguments(sin_cache=torch.ones(1, 6, 48)), ValueError, r"sin_cache is \[1, 6, 48\]; accepted: \[1, 6, 96\]"),
    (rope_arguments(cos_cache=torch.ones(6, 96)), ValueError, r"cos_cache is \[6, 96\]; accepted: \[1, 6, 96\]"),
    (rope_arguments(cos_cache=torch.ones(1, 6, 96).double()), TypeError, "cos_cache is torch.float64; accepted"),
    (rope_arguments(sin_cache=torch.full((1, 6, 96), NAN)), ValueError, r"sin_cache has nan at \[0, 0, 0\]"),
    (rope_arguments(head_dim=3, num_heads=126), ValueError, "head_dim is 3; accepted with fused_rope: an even number"),
    # Norm.
    ({"norm_eps": 0.0}, ValueError, "norm_eps is 0.0; accepted: a finite number above 0"),
    ({"norm_eps": NAN}, ValueError, "norm_eps is nan; accepted: a finite number above 0"),
    ({"norm_eps": 10**400}, ValueError, "norm_eps is an integer of 1329 bits; accepted: a finite number above 0"),
    (
        norm_arguments(qk_norm_pre_rope=QKNormConfig(ACROSS_HEADS, ACROSS_HEADS, eps=10**5000)),
        ValueError,
        "qk_norm_pre_rope.eps is an integer of 16610 bits; accepted: a finite number above 0",
    ),
    ({"norm_eps": "1e-6"}, TypeError, "norm_eps is '1e-6'; accepted: a number above 0"),
    ({"qk_norm_pre_rope": ACROSS_HEADS}, TypeError, "qk_norm_pre_rope is a NormType; accepted: QKNormConfig or None"),
    (
        norm_arguments(qk_norm_pre_rope=QKNormConfig(q_norm="rms")),  # type: ignore[arg-type]
        TypeError,
        "qk_norm_pre_rope.q_norm is 'rms'; accepted: a NormType or None",
    ),
    (
        norm_arguments(qk_norm_pre_rope=QKNormConfig(ACROSS_HEADS, ACROSS_HEADS, eps=-1.0)),
        ValueError,
        "qk_norm_pre_rope.eps is -1.0; accepted: a finite number above 0",
    ),
    (
        norm_arguments(num_heads=4, num_kv_heads=0),
        ValueError,
        "qk_norm_pre_rope.k_norm is set; accepted with num_kv_heads = 0: None",
    ),
    (
        norm_arguments(qk_norm_pre_rope_q_gamma=None),
        ValueError,
        r"qk_norm_pre_rope_q_gamma is None; accepted with qk_norm_pre_rope.q_norm: \[1, 192\]",
    ),
    (
        norm_arguments(qk_norm_pre_rope_k_gamma=torch.ones(1, 192)),
        ValueError,
        r"qk_norm_pre_rope_k_gamma is \[1, 192\]; accepted: \[1, 96\]",
    ),
    (
        norm_arguments(qk_norm_pre_rope_k_gamma=torch.full((1, 96), INF)),
        ValueError,
        r"qk_norm_pre_rope_k_gamma has inf at \[0, 0\]",
    ),
    (
        norm_arguments(qk_norm_pre_rope=QKNormConfig(q_norm=ACROSS_HEADS)),
        ValueError,
        "qk_norm_pre_rope_k_gamma is given without qk_norm_pre_rope.k_norm; accepted: None",
    ),
    (
        norm_arguments(qk_norm_pre_rope=None),
        ValueError,
        "qk_norm_pre_rope_q_gamma is given without qk_norm_pre_rope.q_norm; accepted: None",
    ),
    # Replica groups and layout.
    ({"replica_groups": [[0, 1]]}, TypeError, r"replica_groups is \[\[0, 1\]\]; accepted: None or equally long tuples"),
    (
        {"replica_groups": ([0, 1],)},
        TypeError,
        r"replica_groups is \(\[0, 1\],\); accepted: None or equally long tuples",
    ),
    ({"replica_groups": (0, 1)}, TypeError, r"replica_groups is \(0, 1\); accepted: None or equally long tuples"),
    ({"replica_groups": ()}, ValueError, r"replica_groups is \(\); accepted"),
    ({"replica_groups": ((),)}, ValueError, r"replica_groups is \(\(\),\); accepted"),
    ({"replica_groups": ((0, 1), (1, 2))}, ValueError, "replica_groups is .*each rank once"),
    ({"replica_groups": ((0, 1), (2,))}, ValueError, "replica_groups is .*equally long"),
    ({"replica_groups": ((0, -1),)}, ValueError, "a rank in replica_groups must be at least 0, got -1"),
    ({"replica_groups": ((0, "1"),)}, TypeError, "a rank in replica_groups must be an integer, got '1'"),
    (
        {"output_layout": "BSD"},
        TypeError,
        "output_layout is 'BSD'; accepted: QKVOutputLayout.BSD, QKVOutputLayout.NBSd",
    ),
    (
        {"output_layout": QKVOutputLayout.NBSd},
        ValueError,
        "head_dim is 96; accepted with QKVOutputLayout.NBSd: 128",
    ),
    (
        rope_arguments(sin_cache=torch.ones(1, 6, 96).bfloat16()),
        TypeError,
        "sin_cache is torch.bfloat16; accepted: torch.float32, as cos_cache is",
    ),
    (
        {"replica_groups": ((0, 1), (2, 3))},
        ValueError,
        r"replica_groups is .* and torch.distributed is not initialised; accepted: None, a gloo process group",
    ),
    # How the call runs.
    ({"choice": Choice(1, 1, cast(Any, [1]))}, TypeError, "choice.flow is a list; accepted: a Flow"),
    ({"norm_eps": 1e-60}, ValueError, "norm_eps is 1e-60; accepted: 1.18e-38 to "),
    ({"choice": [1, 2]}, TypeError, "choice is a list; accepted: a Choice, such as Plan.choice, or None"),
    ({"choice": Choice(9, 0)}, ValueError, "choice does not suit these sizes: degree must be at most 1"),
    ({"choice": Choice(1, 9)}, ValueError, "choice does not suit these sizes: resident_h_tiles must be at most 1"),
    ({"choice": Choice(1, -1)}, ValueError, "an integer of choice must be at least 0, got -1"),
    ({"choice": Choice(1, 1, Flow(early=True))}, ValueError, "choice does not suit these sizes: flow.early is True"),
    (
        {"choice": Choice(1, 0, Flow(chunk_buffers=0))},
        ValueError,
        "choice .*: flow.chunk_buffers must be at least 1",
    ),
    ({"choice": Choice(1.5, 0)}, TypeError, "an integer of choice must be an integer, got 1.5"),  # type: ignore[arg-type]
    # Unknown and missing ones.
    ({"scales": 1}, TypeError, ".* unexpected keyword argument 'scales'"),
]


@pytest.mark.parametrize(("changes", "error", "message"), PARAMETERS)
def test_bad_input_is_refused_by_name_before_any_launch(changes, error, message, monkeypatch):
    class NeverLaunched:
        def __getitem__(self, lnc):
            pytest.fail("launched")

    monkeypatch.setattr(shim, "ENTRY", dataclasses.replace(shim.ENTRY, kernel=NeverLaunched()))
    environment = dict(os.environ)
    with pytest.raises(error, match=f"^{message}") as refusal:
        row_mx_qkv_proj(**arguments(**changes))
    assert type(refusal.value) is error
    assert dict(os.environ) == environment


def test_too_wide_a_call_is_refused_with_its_budget():
    wide = 40_000
    changes = {
        "weight": torch.zeros(32, wide, 4).to(FP8),
        "weight_scales": torch.ones(1, wide),
        "bias": None,
        "packed_hidden": row_mx.row_quantise_packed(torch.ones(1, 2, 128)),
    }
    with pytest.raises(
        ValueError, match=r"H = 128 and weight of I = 40000: SBUF of trn3: .* needs [\d,]+ of 245,752 B"
    ):
        row_mx_qkv_proj(**arguments(**changes, num_heads=wide, head_dim=1, num_kv_heads=0))


def test_a_norm_of_nothing_is_no_norm():
    call = arguments()
    assert torch.equal(row_mx_qkv_proj(**call, qk_norm_pre_rope=QKNormConfig()), row_mx_qkv_proj(**call))


def test_reference_takes_the_same_operands():
    call = arguments(dataclasses.replace(CASE, bias_dtype=None))
    assert reference.row_mx_qkv_proj(*operands_of(call)).shape == (1, 6, 384)
