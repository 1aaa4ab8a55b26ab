"""General calls on the simulator against the fp64 reference."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torchao.prototype.mx_formats import config as mx_config
from torchao.prototype.mx_formats import mx_tensor

from kernels.qkv_cte.device.config import Flow
from kernels.qkv_cte.host.entry import qkv
from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QuantizationType
from kernels.qkv_cte.oracle import cases, qkv_reference
from kernels.qkv_cte.oracle.compare import bf16_ulp
from kernels.qkv_cte.oracle.qkv_cases import QKVCase, random_call
from kernels.qkv_cte.oracle.qkv_compare import MAX_SUM_ERROR, as_bsd, limit_of, max_ulps, sum_error
from kernels.qkv_cte.planning.choice import Choice
from kernels.qkv_cte.planning.qkv_plan_test import qkv_cases

N, Q = NormType, QuantizationType
FP16, FP32, BF16 = torch.float16, torch.float32, torch.bfloat16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ACROSS = QKNormConfig(N.RMS_NORM_ACROSS_HEADS, N.RMS_NORM_ACROSS_HEADS, 1e-5)
MIXED = QKNormConfig(N.LAYER_NORM, N.RMS_NORM_SKIP_GAMMA, 1e-5)
LATER = QKNormConfig(N.RMS_NORM, N.LAYER_NORM, 1e-2)

CALLS = (
    QKVCase("bf16", 200, 256, 3, bias=True, lnc=2),
    QKVCase("bf16_no_bias", 129, 1, 3, 0, 73),
    QKVCase("fp16", 255, 384, 8, 0, 64, input_dtype=FP16, weight_dtype=FP16, bias=True),
    QKVCase("fp32", 127, 300, 3, input_dtype=FP32, weight_dtype=FP32, bias=True),
    QKVCase("fp32_to_bf16", 130, 300, 3, input_dtype=FP32),
    QKVCase("trn2", 257, 256, 3, 1, 128, target="trn2", rope=True, nbsd=True, cache="flat", norm=N.LAYER_NORM),
    QKVCase("trn2_across", 129, 256, 3, 1, 128, target="trn2", rope=True, pre=ACROSS),
    QKVCase("many_h_tiles", 300, 2100, 9, 2, 64, bias=True),
    QKVCase("residuals", 200, 256, 3, residuals=2),
    QKVCase("rms_norm", 130, 384, 3, norm=N.RMS_NORM, bias=True, vector_dtype=BF16),
    QKVCase("rms_norm_skip_gamma", 130, 640, 3, norm=N.RMS_NORM_SKIP_GAMMA),
    QKVCase("layer_norm", 130, 1100, 3, norm=N.LAYER_NORM, residuals=1, padding=52),
    QKVCase("layer_norm_fp16", 131, 513, 3, norm=N.LAYER_NORM, input_dtype=FP16, weight_dtype=FP16),
    QKVCase("sums", 130, 256, 10, 2, 128, batch=2, sums=("q", "k", "v")),
    QKVCase("rope", 130, 256, 10, 2, 128, rope=True, sums=("q", "v"), vector_dtype=BF16),
    QKVCase("pre_norm", 130, 256, 10, 2, 128, rope=True, pre=QKNormConfig(N.RMS_NORM, N.RMS_NORM, 1e-5)),
    QKVCase("pre_norm_alone", 130, 256, 5, 2, 128, pre=MIXED),
    QKVCase("both_norms", 129, 256, 10, 2, 128, rope=True, own_k_caches=True, pre=MIXED, post=LATER, bias=True),
    QKVCase("heads_of_96", 129, 256, 7, 2, 96, rope=True, pre=MIXED, post=LATER, bias=True, lnc=1),
    QKVCase("heads_of_2", 129, 256, 7, 2, 2, rope=True, pre=MIXED, bias=True),
    QKVCase("across", 129, 256, 7, 2, 128, rope=True, pre=ACROSS, bias=True, nbsd=True, norm=N.RMS_NORM),
    QKVCase("across_fp32", 129, 256, 7, 2, 128, rope=True, pre=ACROSS, input_dtype=FP32, weight_dtype=FP32),
    QKVCase("across_mxfp8", 258, 256, 4, 2, 64, pre=ACROSS, quantization=Q.MXFP8, lnc=2, sums=("k", "v")),
    QKVCase("across_row_mx", 130, 256, 4, 2, 64, rope=True, pre=ACROSS, quantization=Q.ROW_MX, bias=True, sums=("q",)),
    QKVCase("flat_cache", 129, 256, 7, 2, 128, 2, rope=True, cache="flat", bias=True, nbsd=True),
    QKVCase("block_cache", 129, 256, 7, 2, 128, 2, rope=True, cache="blocks", bias=True),
    QKVCase("fp8_cache", 130, 256, 7, 2, 128, 2, cache="blocks", bias=True, lnc=2, cache_dtype=E4M3),
    QKVCase("fp8_flat_cache", 130, 256, 3, 2, 64, 2, cache="flat", lnc=2, cache_dtype=E5M2, target="trn2"),
    QKVCase("mxfp8", 129, 256, 7, 2, 64, 2, quantization=Q.MXFP8),
    QKVCase("mxfp8_norm", 129, 2688, 9, 2, 64, 2, quantization=Q.MXFP8, bias=True, norm=N.RMS_NORM),
    QKVCase("mxfp8_fp16", 129, 640, 9, 2, 64, quantization=Q.MXFP8, bias=True, input_dtype=FP16, rope=True),
    QKVCase("mxfp8_fp32", 130, 1152, 3, 1, 64, quantization=Q.MXFP8, input_dtype=FP32, lnc=2),
    QKVCase("row_mx", 129, 640, 9, 2, 64, 2, quantization=Q.ROW_MX, bias=True, rope=True, post=LATER, cache="flat"),
    QKVCase("decode_1", 1, 640, 9, 2, 64, 2, lnc=2, bias=True),
    QKVCase("decode_15", 3, 640, 8, 2, 64, 5, lnc=2, rope=True, cache="blocks", pre=MIXED, norm=N.RMS_NORM),
    QKVCase("decode_odd_heads", 3, 256, 5, 1, 128, 3, lnc=2, rope=True, cache="blocks", nbsd=True),
    QKVCase("decode_mxfp8", 3, 640, 9, 2, 64, 5, lnc=2, cache="blocks", quantization=Q.MXFP8, cache_dtype=E5M2),
    QKVCase("decode_k_on_both_cores", 3, 256, 1, 2, 64, 5, lnc=2, cache="blocks"),
    QKVCase("decode_k_heads_on_both_cores", 3, 256, 2, 4, 64, 5, lnc=2, cache="flat", cache_dtype=E4M3, rope=True),
    QKVCase("decode_row_mx", 96, 256, 9, 2, 64, lnc=2, bias=True, quantization=Q.ROW_MX, rope=True),
)

CACHES = {
    cache: QKVCase(cache, 66, 256, 3, 2, 64, 2, lnc=2 if cache == "flat" else 1, cache=cache, sums=("q", "v"))
    for cache in ("flat", "blocks")
}


def run(case, call):
    """The result, and the call with copies of what it wrote to."""
    written = {name: value.clone() for name, value in vars(call).items() if is_written(name, value)}
    call = dataclasses.replace(call, **written)
    return qkv(**vars(call), target=case.target, lnc=case.lnc), call


def is_written(name, value):
    return value is not None and (name in ("k_cache", "v_cache") or name.endswith("_sum_out"))


def assert_right(case, before, result, after):
    ulps = max_ulps(before, result)
    print(f"{case.name}: {ulps:.3f} ulps")
    assert ulps <= limit_of(before)
    assert result.dtype == case.output_dtype
    for name in case.sums:
        error = sum_error(before, name, getattr(after, f"{name}_squared_sum_out"), result.dtype)
        print(f"{case.name}: sums of {name} {error:.1e}")
        assert error <= MAX_SUM_ERROR
    if case.cache:
        for name in ("k", "v"):
            assert_cache_right(case, before, name, result, getattr(after, f"{name}_cache"))


def assert_cache_right(case, before, name, result, cache):
    """Rows of tokens hold what the output holds; all others what they held."""
    expected = getattr(before, f"{name}_cache").clone()
    kv_width = case.num_kv_heads * case.d_head
    q_width = case.num_q_heads * case.d_head
    values = as_bsd(before, result).split([q_width, kv_width, kv_width], -1)[1 if name == "k" else 2]
    if cache.dtype.itemsize == 1:
        scale = torch.as_tensor(getattr(before, f"{name}_scale")).float()
        largest = torch.finfo(cache.dtype).max
        values = (values.float() * (1 / scale)).clamp(-largest, largest)
    if before.slot_mapping is None:
        expected[:, : case.seqlen] = values.to(cache.dtype)
    else:
        kept = before.slot_mapping >= 0
        expected.view(-1, kv_width)[before.slot_mapping[kept].long()] = values[kept].to(cache.dtype)
    assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_call(case):
    call = random_call(case)
    result, after = run(case, call)
    assert_right(case, call, result, after)


@pytest.mark.parametrize("kept_tiles", [0, 1, 2])
@pytest.mark.parametrize("name", ["across", "across_fp32", "across_mxfp8", "trn2_across", "across_row_mx"])
def test_norms_across_heads_in_the_evictions(name, kept_tiles):
    """By a choice: norm and RoPE are applied before the tokens' RMS is known, in any format."""
    case = next(case for case in CALLS if case.name == name)
    call = random_call(case)
    flow = Flow(True, kept_tiles, min(1, 2 - kept_tiles), chunk_buffers=3, scalar_every=kept_tiles)
    tiles = -(-case.batch * case.seqlen // (128 * case.lnc))
    assert tiles == 2
    choice = Choice(degree=2, resident_h_tiles=1, flow=flow)
    chosen, after = run(case, dataclasses.replace(call, choice=choice))
    assert_right(case, call, chosen, after)
    if case.output_dtype is FP32:
        assert max_ulps(call, chosen) < 0.01  # Rows that wait for the pass are fp32, too.
    plain, _ = run(case, call)
    assert not torch.equal(chosen, plain)


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ((2, 1), TypeError, "choice is a tuple; accepted: a Choice, such as Plan.choice, or None"),
        (Choice(9, 1), ValueError, "choice does not suit these sizes: degree must be at most 2"),
        (Choice(1, 9), ValueError, "choice does not suit these sizes: resident_h_tiles must be at most 2"),
        (Choice(1, 1, Flow(early=True)), ValueError, "choice does not suit these sizes: flow.early is True; accepted"),
        (Choice(1, 1, Flow(kept_tiles=1)), ValueError, "choice does not suit these sizes: flow.kept_tiles is 1"),
    ],
)
def test_choices_that_do_not_suit_are_refused(choice, error, message):
    case = QKVCase("refused", 130, 256, 3, rope=True)
    with pytest.raises(error, match=f"^{message}"):
        run(case, dataclasses.replace(random_call(case), choice=choice))


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(case=qkv_cases())
def test_any_call(case):
    call = random_call(case, seed=1)
    try:
        result, after = run(case, call)
    except ValueError as refusal:
        assert "only divide into" in str(refusal)  # noqa: PT017 - heads that two cores cannot share
        return
    assert_right(case, call, result, after)


def test_reference_quantises_as_torchao():
    """An independent implementation of the OCP casts, with scales rounded down."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(64, 256, generator=generator) * torch.exp2(torch.randint(-20, 20, (64, 8), generator=generator))[
        :, :, None
    ].expand(64, 8, 32).flatten(1)
    x = x.bfloat16()
    theirs = mx_tensor.MXTensor.to_mx(x, E4M3, block_size=32, scaling_mode=mx_config.ScaleCalculationMode.FLOOR)
    assert torch.equal(qkv_reference.block_quantised(x.double()), theirs.dequantize(torch.float32).double())


@pytest.mark.parametrize("pair", [(0, 1), (3, 4), (15, 16), (16, 20), (2, 22)])
def test_block_scales_lie_where_they_belong(pair):
    """n5: any two neighbouring blocks' scales, of one column, swapped change the output."""
    case = QKVCase("scales", 129, 768, 4, quantization=Q.MXFP8)
    call = random_call(case)
    blocks, channels = torch.meshgrid(torch.arange(768 // 32), torch.arange(case.width), indexing="ij")
    scales = (channels + 7 * blocks).remainder(29).add(113).to(torch.uint8)
    call = dataclasses.replace(call, qkv_w_scale=scales)
    result, _ = run(case, call)
    assert max_ulps(call, result) <= limit_of(call)
    order = torch.arange(scales.shape[0])
    order[list(pair)] = order[list(reversed(pair))]
    assert max_ulps(dataclasses.replace(call, qkv_w_scale=scales[order]), result) > 2


def test_every_bias_and_gamma_is_in_its_place():
    """n5: of vectors whose exponents all differ, any two swapped would show."""
    case = QKVCase("vectors", 129, 128, 5, 2, 64, bias=True, pre=QKNormConfig(N.RMS_NORM, N.RMS_NORM))
    call = random_call(case)
    call = dataclasses.replace(
        call,
        qk_norm_pre_rope_q_gamma=cases.distinct_scales(64, 64)[None],
        qk_norm_pre_rope_k_gamma=cases.distinct_scales(64, 64)[None].flip(1),
        input=torch.zeros_like(call.input),
        bias=cases.distinct_scales(case.width, 512)[None],
    )
    result, _ = run(case, call)
    assert relative_error(call, result) <= 2.0**-8
    for name in ("qk_norm_pre_rope_q_gamma", "qk_norm_pre_rope_k_gamma", "bias"):
        for i, j in ((0, 1), (0, 29), (31, 63)):
            order = torch.arange(getattr(call, name).shape[1])
            order[[i, j]] = order[[j, i]]
            swapped = with_field(call, name, getattr(call, name)[:, order])
            assert relative_error(swapped, result) > 2.0**-6, (name, i, j)


def with_field(call, name, value):
    changes: dict[str, Any] = {name: value}
    return dataclasses.replace(call, **changes)


def relative_error(call, result):
    exact = qkv_reference.qkv(call).output
    return float(((result.double() - exact) / exact).abs().max())


class TestKnownDefects:
    """Where the public kernel is known to be wrong."""

    def test_sums_of_later_batches_are_their_own(self):
        """Its sum-of-squares column ignores the batch index, so that later batches overwrite earlier ones."""
        case = QKVCase("batches", 260, 128, 2, 1, 64, batch=3, pre=ACROSS, sums=("q", "k"))
        call = random_call(case)
        batches = torch.tensor([1.0, 16.0, 256.0]).reshape(3, 1, 1)
        call = dataclasses.replace(call, input=(call.input.float() * batches).bfloat16())
        result, after = run(case, call)
        assert_right(case, call, result, after)

    def test_k_stays_as_it_is_without_k_norm(self):
        """It normalises K whenever there are K heads."""
        case = QKVCase("k", 129, 128, 2, 1, 64, pre=QKNormConfig(N.RMS_NORM_ACROSS_HEADS, None))
        for asked in (case, dataclasses.replace(case, pre=QKNormConfig(N.RMS_NORM, None))):
            result, _ = run(asked, random_call(asked))
            plain, _ = run(case, random_call(dataclasses.replace(case, pre=None)))
            assert torch.equal(result[..., 128:], plain[..., 128:])
            assert not torch.equal(result[..., :128], plain[..., :128])

    @pytest.mark.parametrize("norm", [N.RMS_NORM, N.RMS_NORM_SKIP_GAMMA, N.LAYER_NORM])
    def test_eps_is_that_of_the_norm_which_it_belongs_to(self, norm):
        """It reads eps from the configuration before RoPE whichever is used."""
        case = QKVCase(
            "eps", 129, 128, 2, 1, 64, rope=True, norm=norm,
            pre=QKNormConfig(None, N.RMS_NORM, 1e-5), post=QKNormConfig(N.RMS_NORM, N.LAYER_NORM, 0.5),
        )  # fmt: skip
        call = dataclasses.replace(random_call(case), norm_eps=2.0)
        result, after = run(case, call)
        assert_right(case, call, result, after)
        for changed in ("norm_eps", "qk_norm_pre_rope", "qk_norm_post_rope"):
            value = 1e-5 if changed == "norm_eps" else dataclasses.replace(getattr(call, changed), eps=0.03)
            assert max_ulps(with_field(call, changed, value), result) > 2


def test_a_stage_across_heads_and_over_single_heads_agree_on_one_head():
    """One head is all heads: two independent ways through the kernel."""
    single = QKVCase("one", 130, 128, 1, 0, 128, rope=True, pre=QKNormConfig(N.RMS_NORM, None, 1e-5))
    across = dataclasses.replace(single, pre=QKNormConfig(N.RMS_NORM_ACROSS_HEADS, None, 1e-5))
    one, all_heads = run(single, random_call(single))[0], run(across, random_call(across))[0]
    assert max_ulps(random_call(single), one) <= 0.75
    assert (one.double() - all_heads.double()).abs().max() <= bf16_ulp(one.double()).max()


@pytest.mark.parametrize("case", CACHES.values(), ids=lambda case: case.name)
def test_what_is_written_may_be_views_of_one_tensor(case):
    """Caches one behind the other in a tensor, and the sums of squares in another: the values of tensors apart."""
    call = random_call(case)
    expected, apart = run(case, call)
    both = torch.stack([call.k_cache, call.v_cache])
    sums = torch.zeros(3, 1, case.batch, case.seqlen)
    views = {"k_cache": both[0], "v_cache": both[1], "q_squared_sum_out": sums[0, 0], "v_squared_sum_out": sums[2, 0]}
    together = dataclasses.replace(call, **views)
    assert torch.equal(qkv(**vars(together), target=case.target, lnc=case.lnc), expected)
    for name, view in views.items():
        assert torch.equal(view, getattr(apart, name)), name
    assert not sums[1].any()


@pytest.mark.parametrize("rope", [False, True])
def test_sums_are_taken_where_they_say(rope):
    """Of the stored projection; of the fp32 one where norms or RoPE of single heads follow, by far closer than both."""
    case = QKVCase("sums", 130, 256, 10, 2, 128, rope=rope, sums=("q",))
    call = random_call(case)
    result, after = run(case, call)
    assert after.q_squared_sum_out is not None
    stored, projected = result[..., :1280].double().square().sum(-1), qkv_reference.qkv(call).sums["q"]
    found = after.q_squared_sum_out.double()
    same, other = (projected, stored) if rope else (stored, projected)
    assert torch.allclose(found, same, rtol=2.0**-16, atol=0)
    assert not torch.allclose(found, other, rtol=2.0**-16, atol=0)


def test_one_column_less_is_seen_in_sums():
    """Whether they are of the fp32 projection or of the stored one, a column of 1,280 counts."""
    call = random_call(QKVCase("sums", 130, 64, 10, 2, 128, sums=("q",)))
    exact = qkv_reference.qkv(call).projected["q"].square()
    for squares in (exact, qkv_reference.qkv(call).projected["q"].bfloat16().double().square()):
        assert sum_error(call, "q", squares.sum(-1), BF16) <= 1e-9
        without = squares.sum(-1, keepdim=True) - squares
        for column in range(0, 1280, 107):
            assert sum_error(call, "q", without[..., column], BF16) > 16 * MAX_SUM_ERROR


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize(("lowest", "highest"), [(-24.0, 40.0), (-40.0, 24.0), (8.0, 9.0), (None, 26.0)])
def test_quotients_are_clamped_where_the_call_says(dtype, lowest, highest):
    """`fp8_min` and `fp8_max` need not mirror each other; without the first it is the second's negative."""
    case = QKVCase("clamp", 130, 256, 3, 2, 64, cache="flat", cache_dtype=dtype)
    call = dataclasses.replace(random_call(case), fp8_min=lowest, fp8_max=highest)
    result, after = run(case, call)
    _, k, v = result.split([192, 128, 128], -1)
    for values, cache, scale in ((k, after.k_cache, 0.013), (v, after.v_cache, 0.02)):
        quotients = values.float() * (1 / torch.tensor(scale))
        assert quotients.min() < -40
        assert quotients.max() > 40
        clamped = quotients.clamp(-highest if lowest is None else lowest, highest).to(dtype)
        assert torch.equal(cache[:, :130].view(torch.uint8), clamped.view(torch.uint8))


def test_padding_is_not_read():
    """`hidden_actual`: NaN in the padding of rows, weights and gamma does not show."""
    case = QKVCase("padding", 130, 200, 2, norm=N.LAYER_NORM, residuals=1, padding=56)
    call = random_call(case)
    result, _ = run(case, call)
    for name in ("input", "mlp_prev"):
        getattr(call, name)[..., 200:] = torch.nan
    call.fused_qkv_weights[200:] = torch.nan
    assert torch.equal(run(case, call)[0], result)


def test_tokens_do_not_show_in_each_other():
    """A NaN, and rows of very different size, stay in their token."""
    for quantization in (Q.NONE, Q.MXFP8):
        case = QKVCase("rows", 130, 256, 2, norm=N.RMS_NORM, rope=True, quantization=quantization)
        call = random_call(case)
        call.input[0, 7, 3] = torch.nan
        call.input[0, 8] *= 2.0**40
        call.input[0, 9] *= 2.0**-40
        result, _ = run(case, call)
        assert result[0, 7].isnan().all()
        assert result[0, :7].isfinite().all()
        assert result[0, 8:].isfinite().all()


def test_inputs_are_left_as_they_are():
    case = QKVCase("left", 130, 256, 2, norm=N.RMS_NORM, rope=True, cache="blocks", residuals=2, bias=True)
    call = random_call(case)
    before = {name: value.clone() for name, value in vars(call).items() if torch.is_tensor(value)}
    run(case, call)
    for name, value in before.items():
        assert torch.equal(value.view(torch.uint8), getattr(call, name).view(torch.uint8)), name
