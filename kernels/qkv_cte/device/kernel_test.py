"""The kernel on the simulator against the fp64 reference."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
from common import row_mx
from kernels.qkv_cte.device.kernel import row_mx_projection
from kernels.qkv_cte.oracle import cases, compare, reference
from kernels.qkv_cte.oracle.cases import CORNERS, Case

DISTINCT = [case for case in CORNERS if max(case.batch * case.seqlen, case.width) <= 900]


def run(case, operands):
    return nki.simulate(row_mx_projection[case.lnc])(*operands.tensors, case.plan.config)


def assert_right(result, operands):
    """The result comes first: until then nothing has computed the answer."""
    errors = compare.compare(result, *operands.tensors)
    assert errors.wrong_nonfinite == 0
    assert errors.max_ulps <= compare.MAX_ULPS, errors
    return errors


@pytest.mark.parametrize("case", CORNERS, ids=lambda case: case.name)
def test_corner(case):
    operands = cases.normal_operands(case)
    assert_right(run(case, operands), operands)


@pytest.mark.parametrize("case", DISTINCT, ids=lambda case: case.name)
def test_every_scale_and_bias_is_in_its_place(case):
    operands = cases.distinct_operands(case)
    assert_right(run(case, operands), operands)


@pytest.mark.parametrize("kind", ["row", "column", "bias"])
def test_any_two_swapped_change_the_output(kind):
    """So the test above cannot pass with two of them exchanged."""
    case = next(case for case in CORNERS if case.name == "h_1152")
    operands = cases.distinct_operands(case)
    result = run(case, operands)
    count = case.seqlen if kind == "row" else case.width
    generator = torch.Generator().manual_seed(3)
    pairs = [(0, 1), (0, 29), (5, 5 + 128), (1, 30), *torch.randint(count, (20, 2), generator=generator).tolist()]
    for i, j in pairs:
        if i != j:
            errors = compare.compare(result, *swapped(operands, kind, i, j).tensors)
            assert errors.max_ulps > 2, (i, j)


def swapped(operands, kind, i, j):
    order = torch.arange(operands.weight.shape[1] if kind != "row" else operands.packed_hidden.shape[1])
    order[[i, j]] = order[[j, i]]
    if kind == "row":
        codes, scales = row_mx.unpack_rows(operands.packed_hidden)
        return dataclasses.replace(operands, packed_hidden=row_mx.pack_rows(codes, scales[:, order]))
    if kind == "column":
        return dataclasses.replace(operands, weight_scales=operands.weight_scales[:, order])
    return dataclasses.replace(operands, bias=operands.bias[:, order])


@pytest.mark.parametrize("hidden", [128, 512, 640, 1152])
@pytest.mark.parametrize("resident", [0, 1])
def test_each_token_picks_its_contraction_row(hidden, resident):
    """Token s is 1 at row s and 0 elsewhere: the output is the weight matrix, bit for bit, so every lane is right.

    As fp32 words the tokens are subnormal or tiny numbers, which a flush to zero would lose.
    """
    case = Case("rows", hidden, hidden, 3, "full", head_dim=211, bias_dtype=None, resident_h_tiles=resident)
    matrix = random_codes(hidden, case.width)
    ones = torch.ones(1, case.width)
    packed = row_mx.pack_rows(torch.eye(hidden)[None].to(torch.float8_e4m3fn), torch.ones(1, hidden, 1))
    result = run(case, cases.Operands(packed, row_mx.pack_weight(matrix), ones, None))
    assert torch.equal(result[0].float(), matrix.float())


@pytest.mark.parametrize("resident", [0, 2])
def test_each_channel_picks_its_contraction_row(resident):
    """Channel i is 1 at row i and 0 elsewhere: the output is the activations, bit for bit."""
    case = Case("columns", 129, 1152, 9, "full", bias_dtype=None, resident_h_tiles=resident)
    codes = random_codes(case.seqlen, 1152)
    packed = row_mx.pack_rows(codes[None], torch.ones(1, case.seqlen, 1))
    weight = row_mx.pack_weight(torch.eye(1152).to(torch.float8_e4m3fn))
    result = run(case, cases.Operands(packed, weight, torch.ones(1, 1152), None))
    assert torch.equal(result[0].float(), codes.float())


def random_codes(rows, columns):
    """Every finite code, at random."""
    generator = torch.Generator().manual_seed(rows * columns)
    codes = torch.randint(0, 0x7F, (rows, columns), generator=generator)
    codes += 0x80 * torch.randint(0, 2, (rows, columns), generator=generator)
    return codes.to(torch.uint8).view(torch.float8_e4m3fn)


@pytest.mark.parametrize("scale", [1e-6, 2.0**-100, 448.0, 3.0e38 / 448, float.fromhex("0x1.fefefep-1")])
def test_row_tail_is_a_little_endian_fp32(scale):
    """The last value has 0x7f in each byte but the lowest, which is a NaN code where a tail is taken for codes."""
    case = Case("tail", 3, 128, 1, "full", bias_dtype=None)
    codes = torch.zeros(1, 3, 128).to(torch.float8_e4m3fn)
    codes[0, :, 0] = 1.0
    scales = torch.tensor([1.0, scale, 1.0])[None, :, None]
    weight = torch.ones(128, 128).to(torch.float8_e4m3fn)
    operands = cases.Operands(row_mx.pack_rows(codes, scales), row_mx.pack_weight(weight), torch.ones(1, 128), None)
    result = run(case, operands)
    assert torch.equal(result, scales.expand(1, 3, 128).to(torch.bfloat16))


@pytest.mark.parametrize(
    "case", [case for case in CORNERS if case.seqlen % 2 == 0 and case.width < 9999], ids=lambda case: case.name
)
def test_two_cores_give_the_same_bits_as_one(case):
    operands = cases.normal_operands(case)
    free = dataclasses.replace(case, degree=None, resident_h_tiles=None)
    one, two = (run(dataclasses.replace(free, lnc=lnc), operands) for lnc in (1, 2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("lnc", [1, 2])
def test_nan_and_infinity_stay_in_their_row_and_column(lnc):
    case = Case("nan", 258, 640, 5, "full", lnc=lnc)
    operands = cases.normal_operands(case)
    assert operands.bias is not None
    operands.packed_hidden[0, 130, 7] = torch.nan
    operands.weight[3, 515, 2] = torch.nan
    operands.weight_scales[0, 17] = 3e38
    operands.bias[0, 99] = -torch.inf
    result = run(case, operands)
    assert_right(result, operands)
    nan = result[0].isnan()
    assert nan[130].all()
    assert nan[:, 515].all()
    assert int(nan.sum()) == 640 + 258 - 1
    assert int(result[0, :, 17].isinf().sum()) > 0


def test_inputs_are_left_as_they_are():
    case = CORNERS[5]
    operands = cases.normal_operands(case)
    before = [tensor.clone() for tensor in operands.tensors if tensor is not None]
    run(case, operands)
    given_back = [tensor for tensor in operands.tensors if tensor is not None]
    for was, tensor in zip(before, given_back, strict=True):
        assert torch.equal(was.view(torch.uint8), tensor.view(torch.uint8))


@st.composite
def forced_cases(draw):
    lnc = draw(st.sampled_from([1, 2]))
    case = Case(
        "random",
        seqlen=lnc * draw(st.integers(1, 700 // lnc)),
        hidden=128 * draw(st.integers(1, 11)),
        num_heads=draw(st.integers(1, 1700)),
        prefetch="full",
        head_dim=1,
        batch=draw(st.integers(1, 2)),
        lnc=lnc,
        bias_dtype=draw(st.sampled_from([None, torch.bfloat16, torch.float32])),
    )
    return dataclasses.replace(
        case,
        degree=draw(st.integers(1, min(8, case.dims.s_tiles))),
        resident_h_tiles=draw(st.integers(0, case.dims.h_tiles)),
    )


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(case=forced_cases(), seed=st.integers(0, 1000))
def test_random_shapes_on_random_schedules(case, seed):
    operands = cases.normal_operands(case, seed)
    assert_right(run(case, operands), operands)


def test_reference_is_the_plain_formula():
    """On numbers small enough to multiply out by hand."""
    packed = torch.zeros(1, 2, 12, dtype=torch.uint8)
    packed[0, :, :8] = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]])
    packed = packed.float().to(torch.float8_e4m3fn)
    packed.view(torch.uint8)[0, 0, 8:] = torch.tensor([0, 0, 0, 0x40])  # 2.0
    packed.view(torch.uint8)[0, 1, 8:] = torch.tensor([0, 0, 0x80, 0x3E])  # 0.25
    weight = torch.zeros(2, 3, 4)
    weight[0, 0, 1] = 1.0  # column 0 takes row 1
    weight[1, 1, 3] = 1.0  # column 1 takes row 7
    weight[0, 2, 0], weight[1, 2, 0] = 1.0, -1.0  # column 2 takes row 0 less row 4
    scales = torch.tensor([[1.0, 10.0, 100.0]])
    bias = torch.tensor([[0.5, 0.0, -1.0]])
    exact = reference.row_mx_qkv_proj(packed, weight.to(torch.float8_e4m3fn), scales, bias)
    assert exact.dtype == torch.float64
    assert exact[0].tolist() == [[4.5, 160.0, -801.0], [2.25, 2.5, 99.0]]
