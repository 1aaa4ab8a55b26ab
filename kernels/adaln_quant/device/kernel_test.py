"""The kernels on the simulator against the fp64 reference, torch's layer norm and common's packing."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nkisim
from common import row_mx
from common.hardware import TRN2
from kernels.adaln_quant.device.kernel import adaln, row_quantise
from kernels.adaln_quant.oracle import cases, compare, reference
from kernels.adaln_quant.oracle.cases import BATCH, BF16, CORNERS, FP32, NONE, TOKEN, Case, Operands

ROWS = Case("rows", 130, 516, modulation=NONE, dtype=FP32)
SMALL = Case("small", 130, 516, batch=2)


def run(case, operands):
    if case.modulation is NONE:
        return nki.simulate(row_quantise[case.lnc])(*operands.tensors, case.plan().config)
    return nki.simulate(adaln[case.lnc])(*operands.tensors, case.plan().config, case.quantised)


def assert_right(result, operands):
    """The result comes first: until then nothing has computed the answer."""
    errors = compare.compare(result, operands)
    assert errors.accepted, errors
    return errors


def same_bits(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("case", CORNERS, ids=lambda case: case.name)
def test_corner(case):
    operands = cases.normal_operands(case)
    assert_right(run(case, operands), operands)


@pytest.mark.parametrize("case", [case for case in CORNERS if case.modulation is NONE], ids=lambda case: case.name)
def test_quantised_rows_are_commons_bytes(case):
    operands = cases.normal_operands(case)
    assert same_bits(run(case, operands), row_mx.row_quantise_packed(operands.x))


@pytest.mark.parametrize(
    "case", [case for case in CORNERS if case.modulation is not NONE and case.quantised], ids=lambda case: case.name
)
def test_modulated_rows_are_nearly_commons_bytes(case):
    """Of torch's own fp32 layer: only what lies an fp32 rounding from a tie may be the neighbouring code."""
    operands = cases.normal_operands(case)
    result = run(case, operands)
    x, gain, offset = (v.float().reshape(case.batch, -1, case.hidden) for v in operands.tensors)
    layer = torch.nn.functional.layer_norm(x, (case.hidden,), eps=1e-6) * (1 + gain) + offset
    expected = row_mx.row_quantise_packed(layer)
    (codes, scales), (expected_codes, expected_scales) = row_mx.unpack_rows(result), row_mx.unpack_rows(expected)
    assert float((scales / expected_scales - 1).abs().max()) <= 2.0**-20
    steps = (codes.view(torch.uint8).int() - expected_codes.view(torch.uint8).int()).abs()
    assert int(steps.max()) <= 1
    assert float((steps > 0).float().mean()) <= 1e-3


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_bf16_out_is_torchs_layer(dtype):
    """Equal to torch's fp32 layer rounded to bf16, but where that lies an fp32 rounding from a tie."""
    case = dataclasses.replace(SMALL, dtype=dtype, quantised=False)
    operands = cases.normal_operands(case)
    result = run(case, operands)
    x, scale, shift = operands.tensors
    layer = torch.nn.functional.layer_norm(x.float(), (case.hidden,), eps=1e-6)
    layer = layer * (1 + scale[:, None]) + shift[:, None]
    assert float((result != layer.bfloat16()).float().mean()) <= 1e-3


def test_bf16_out_on_trn2():
    """The older target has no e4m3fn, and needs none for this."""
    case = dataclasses.replace(SMALL, quantised=False)
    operands = cases.normal_operands(case)
    finished = nkisim.run(
        adaln[1], *operands.tensors, case.plan(TRN2).config, False, options=nkisim.Options(target="trn2")
    )
    assert same_bits(finished.outputs, run(case, operands))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_rows_of_zeros_and_near_zero(dtype):
    """Below 448e-6 the scale stays at 1e-6; zeros keep their signs."""
    x = torch.zeros(1, 8, 516)
    x[0, 1] = -0.0
    x[0, 2, 7] = 4.4e-4
    x[0, 3] = torch.linspace(-1e-6, 1e-6, 516)
    x[0, 4] = 1e-30
    x[0, 5, 0] = 4.49e-4
    x[0, 6] = torch.linspace(-1e-9, 1e-9, 516)
    x[0, 7, 100] = -5.0
    operands = Operands(x.to(dtype), None, None)
    result = run(dataclasses.replace(ROWS, seqlen=8, dtype=dtype), operands)
    assert same_bits(result, row_mx.row_quantise_packed(operands.x))
    scales = reference.unpack(result)[1][0, :, 0]
    floor = float(torch.tensor(1e-6))
    assert [float(s) for s in scales[[0, 1, 2, 3, 4, 6]]] == [floor] * 6
    assert scales[5] > floor
    assert_right(result, operands)


@pytest.mark.parametrize("largest", [3.4028234663852886e38, 3.0e38, 1.0, 448e-6, 2.0**-20])
def test_scales_up_to_the_largest_fp32(largest):
    """448 = 7 * 64, so quotients have no short form; the largest numbers overflow in no step of the division."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(1, 200, 64, generator=generator) * 2 - 1
    x[0, :, 5] = torch.where(torch.arange(200) % 2 == 0, 1.0, -1.0)
    x = x * (largest * (0.5 + 0.5 * torch.rand(1, 200, 1, generator=generator)).clamp(max=1.0))
    result = run(dataclasses.replace(ROWS, seqlen=200, hidden=64), Operands(x, None, None))
    assert same_bits(result, row_mx.row_quantise_packed(x))


def test_the_division_is_exact_for_every_fraction():
    """The kernel's four steps in numpy's fp32 against numpy's division, for all 2**23 fractions of an fp32."""
    fractions = np.arange(2**23, dtype=np.uint32)
    for exponent in (118, 127, 254):
        a = (fractions | np.uint32(exponent << 23)).view(np.float32)
        quotient = a * np.float32(1 / 448)
        remainder = a * np.float32(1 / 512) - quotient
        remainder = quotient * np.float32(1 / 8) + remainder
        assert np.array_equal(remainder * np.float32(8 / 7) + quotient, a / np.float32(448))


def test_every_code_comes_out():
    """A row that holds the 253 finite values of the codes, scaled: the codes are those, in their places."""
    values = reference.e4m3fn_values()
    codes = torch.arange(256)[values.isfinite()]
    x = torch.stack([values[codes].float() * factor for factor in (1.0, 2.0**-9, 2.0**40)])
    padded = torch.nn.functional.pad(x, (0, 2))[None]
    assert padded.shape == (1, 3, 256)
    result = run(dataclasses.replace(ROWS, seqlen=3, hidden=256), Operands(padded, None, None))
    assert torch.equal(result.view(torch.uint8)[0, :, :254], codes.to(torch.uint8).expand(3, -1))


def test_outlier_channels_cost_the_others_only_their_step():
    """One channel 1,000 times the others: those keep an error of half a step of what is left of the range."""
    case = dataclasses.replace(SMALL, batch=1)
    operands = cases.normal_operands(case)
    operands.x[..., 77] = 1000 * operands.x.float().std()
    errors = assert_right(run(case, operands), operands)
    assert errors.relative_rms <= 0.04


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("mean", [1000.0, -3e6])
def test_means_that_are_large_against_the_deviation(mean, dtype):
    """A difference of squares would leave nothing of the variance."""
    case = dataclasses.replace(SMALL, dtype=dtype, quantised=False)
    operands = cases.normal_operands(case)
    x = (operands.x.float() + mean).to(dtype)
    operands = dataclasses.replace(operands, x=x)
    assert_right(run(case, operands), operands)


def test_rows_without_variance():
    """A constant row is its shift: its deviations are 0, exactly where the mean is, and eps keeps the root finite."""
    case = dataclasses.replace(SMALL, batch=1, seqlen=3, hidden=512, dtype=FP32)
    operands = cases.normal_operands(case)
    operands.x[0, 0], operands.x[0, 1] = 0.0, 3.0
    result = run(case, operands)
    codes, scales = reference.unpack(result)
    assert_right(result, operands)
    assert torch.equal(codes[0, 0], codes[0, 1])
    assert torch.equal(scales[0, 0], scales[0, 1])


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_eps(eps):
    case = dataclasses.replace(SMALL, quantised=False)
    operands = cases.normal_operands(case)
    operands = dataclasses.replace(operands, x=(operands.x.float() * 1e-3).bfloat16())
    config = dataclasses.replace(case.plan(), eps=eps).config
    errors = compare.compare(nki.simulate(adaln)(*operands.tensors, config, False), operands, eps)
    assert errors.accepted, errors


@pytest.mark.parametrize("case", [case for case in CORNERS if case.seqlen % 2 == 0], ids=lambda case: case.name)
def test_two_cores_give_the_same_bits_as_one(case):
    operands = cases.normal_operands(case)
    one, two = (run(dataclasses.replace(case, lnc=lnc), operands) for lnc in (1, 2))
    assert same_bits(one, two)


@pytest.mark.parametrize("modulation", [NONE, BATCH, TOKEN])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_stay_in_their_row(modulation, value):
    """Where nobody checks the values, as on a device: that row is lost, no other changes."""
    case = dataclasses.replace(SMALL, modulation=modulation, lnc=2)
    operands = cases.normal_operands(case)
    clean = run(case, operands)
    operands.x[1, 65, 7] = value
    result = run(case, operands)
    assert not reference.unpack(result)[0][1, 65].isfinite().all() or not reference.unpack(result)[1][1, 65].isfinite()
    clean[1, 65] = result[1, 65]
    assert same_bits(result, clean)


def test_tokens_have_their_own_modulation():
    """The vector of each batch repeated for its tokens gives the bits that the vector gives."""
    case = dataclasses.replace(SMALL, dtype=FP32)
    operands = cases.normal_operands(case)
    repeated = [v[:, None].expand(-1, case.seqlen, -1).contiguous() for v in operands.tensors[1:]]
    tokens = dataclasses.replace(operands, scale=repeated[0], shift=repeated[1])
    assert same_bits(run(dataclasses.replace(case, modulation=TOKEN), tokens), run(case, operands))


def test_inputs_are_left_as_they_are():
    """Rows are normalised and measured in place on the chip, not in HBM."""
    for case in (ROWS, dataclasses.replace(SMALL, dtype=FP32), dataclasses.replace(SMALL, modulation=TOKEN)):
        operands = cases.normal_operands(case)
        before = [tensor.clone() for tensor in operands.tensors]
        run(case, operands)
        assert all(torch.equal(was, tensor) for was, tensor in zip(before, operands.tensors, strict=True))


@st.composite
def random_cases(draw):
    lnc = draw(st.sampled_from([1, 2]))
    modulation = draw(st.sampled_from(list(cases.Modulation)))
    return Case(
        "random",
        seqlen=lnc * draw(st.integers(1, 300 // lnc)),
        hidden=4 * draw(st.integers(1, 400)),
        batch=draw(st.integers(1, 3)),
        modulation=modulation,
        dtype=draw(st.sampled_from([BF16, FP32])),
        modulation_dtype=draw(st.sampled_from([BF16, FP32])),
        quantised=modulation is NONE or draw(st.booleans()),
        lnc=lnc,
    )


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(case=random_cases(), seed=st.integers(0, 1000))
def test_random_shapes(case, seed):
    operands = cases.normal_operands(case, seed)
    assert_right(run(case, operands), operands)


def test_reference_is_the_plain_formula():
    """On numbers small enough to compute by hand: mean 2, variance 4."""
    x = torch.tensor([[[0.0, 0.0, 4.0, 4.0]]])
    scale, shift = torch.tensor([[1.0, -1.0, 0.0, 2.0]]), torch.tensor([[0.5, 7.0, 0.0, -1.0]])
    exact = reference.adaln(x, scale, shift, eps=0.0)
    assert exact.dtype == torch.float64
    assert exact.tolist() == [[[-1.5, 7.0, 1.0, 2.0]]]
    assert reference.adaln(x, scale[:, None], shift[:, None], eps=12.0).tolist() == [[[-0.5, 7.0, 0.5, 0.5]]]
    assert reference.row_scales(exact).tolist() == [[[7.0 / 448]]]
    assert reference.row_scales(exact * 0).tolist() == [[[1e-6]]]


def test_reference_reads_codes_as_torch_does():
    raw = torch.arange(256, dtype=torch.uint8)
    expected = raw.view(torch.float8_e4m3fn).to(torch.float64)
    torch.testing.assert_close(reference.e4m3fn_values(), expected, rtol=0, atol=0, equal_nan=True)
