"""Front-fold and fused step on the simulator against the fp64 references, and against each other."""

import dataclasses
import inspect
import math

import pytest
import torch

from kernels.mla_decode import yarn_softmax_scale
from kernels.mla_decode.host.cache_format import GROUP, LARGEST_CODE, unpack_rows
from kernels.mla_decode.oracle import compare, run
from kernels.mla_decode.oracle.cases import Case
from kernels.mla_decode.oracle.front_cases import FRONT_CORNERS, FrontCase, front_operands
from kernels.mla_decode.oracle.front_reference import rotate

BF16, FP32 = torch.bfloat16, torch.float32
SMALL = FrontCase(Case("small", 4, 2, 40, dtype=FP32), input_norm=True)


def assert_close(result, exact, rounded):
    """Within the type's limit, and in bf16 no further than rounding takes it. The results exist by now (m10)."""
    assert result.dtype in (BF16, FP32)
    error = compare.relative_rms(result, exact)
    assert error <= compare.MAX_RELATIVE_RMS[result.dtype], error
    if result.dtype is BF16:
        assert error <= compare.MAX_OF_ROUNDED * compare.relative_rms(rounded, exact), error


@pytest.mark.parametrize("case", FRONT_CORNERS, ids=lambda case: case.name)
def test_front_fold(case):
    operands = front_operands(case)
    made = run.qkv(case, operands)
    exact, rounded = operands.front(), operands.front(FP32, case.attention.dtype)
    for name in exact._fields:
        assert_close(getattr(made, name), getattr(exact, name), getattr(rounded, name))


def test_inputs_as_small_as_the_epsilon():
    """Mean squares about norm_eps, where leaving it out would double the results of every norm."""
    case = dataclasses.replace(SMALL, input_norm=False)
    operands = front_operands(case)
    operands = operands.replace(hidden_states=operands.hidden_states * 1e-3)
    made = run.qkv(case, operands)
    exact = operands.front()
    for name in exact._fields:
        assert_close(getattr(made, name), getattr(exact, name), None)


@pytest.mark.parametrize("case", FRONT_CORNERS, ids=lambda case: case.name)
def test_fused_step_is_its_halves(case):
    """Bit for bit: output, row, and the cache, of which only the named slots change."""
    operands, apart = front_operands(case), front_operands(case)
    before = operands.step.kv_cache.clone()
    output, row = run.decode(case, operands)
    second_half = after_front_fold(case, apart)
    assert torch.equal(output, run.attention(case.attention, second_half))
    assert torch.equal(row, second_half.kv_row_cur)
    slots, width = operands.slot_mapping.long(), before.shape[-1]
    written = operands.step.kv_cache.view(-1, width)[slots]
    if case.attention.fp8_cache:
        assert_packed(written, row, case.attention)
    else:
        assert torch.equal(written, row)
    before.view(-1, width)[slots] = written
    assert torch.equal(operands.step.kv_cache, before)
    assert torch.equal(apart.step.kv_cache, before)


def after_front_fold(case, operands):
    """What the attention takes when the front-fold has run on its own."""
    made = run.qkv(case, operands)
    return operands.step.replace(q_absorbed=made.q_absorbed, q_pe=made.q_pe, kv_row_cur=made.kv_row_cur)


def assert_packed(written, row, case):
    """k_pe as it is; of each 128 latent numbers the largest is code 448, and all are within half a step of theirs."""
    numbers, rope = unpack_rows(written, case.kv_lora_rank), case.rope
    assert torch.equal(numbers[:, :rope], row[:, :rope].double())
    latent, groups = row[:, rope:].double(), (-1, GROUP)
    scale = latent.unflatten(-1, groups).abs().amax(dim=-1, keepdim=True) / LARGEST_CODE
    codes = numbers[:, rope:].unflatten(-1, groups) / scale
    assert (codes.abs().amax(dim=-1) - LARGEST_CODE).abs().max() <= 1e-4
    steps = latent.unflatten(-1, groups) / scale
    half_step = torch.exp2(steps.abs().clamp(min=2.0**-6).log2().floor() - 4)
    assert ((codes - steps).abs() <= half_step * (1 + 1e-5)).all()


@pytest.mark.parametrize("case", FRONT_CORNERS, ids=lambda case: case.name)
def test_fused_step(case):
    """fp32 within its limit. bf16 rounds twice as often as the attention alone, so only the torch chain bounds it."""
    operands = front_operands(case)
    output, _ = run.decode(case, operands)
    scale = case.attention.softmax_scale
    exact = operands.exact(scale)
    error = compare.relative_rms(output, exact)
    if case.attention.dtype is FP32:
        assert error <= compare.MAX_RELATIVE_RMS[FP32], error
    else:
        assert error <= compare.MAX_OF_ROUNDED * compare.relative_rms(operands.rounded(scale), exact), error


def test_a_token_does_not_depend_on_its_neighbours():
    """Bit for bit with other neighbours. Alone within rounding: the simulator's products of one row add up in
    another order than those of several, which the chip's do not.
    """
    together, rows = run.decode(SMALL, front_operands(SMALL))
    turned, turned_rows = run.decode(SMALL, tokens_of(front_operands(SMALL), [3, 2, 1, 0]))
    assert torch.equal(turned.flip(0), together)
    assert torch.equal(turned_rows.flip(0), rows)
    alone_case = dataclasses.replace(SMALL, attention=dataclasses.replace(SMALL.attention, n_tokens=1))
    for token in range(4):
        alone, row = run.decode(alone_case, tokens_of(front_operands(SMALL), [token]))
        assert compare.relative_rms(alone[0], together[token].double()) <= compare.MAX_RELATIVE_RMS[FP32]
        assert compare.relative_rms(row[0], rows[token].double()) <= compare.MAX_RELATIVE_RMS[FP32]


def tokens_of(operands, tokens):
    order = torch.tensor(tokens)
    per_token = ("q_absorbed", "q_pe", "kv_row_cur", "selected", "positions", "block_table")
    step = operands.step.replace(**{name: getattr(operands.step, name)[order] for name in per_token})
    mine = {name: getattr(operands, name)[order] for name in ("hidden_states", "cos", "sin", "slot_mapping")}
    return operands.replace(step=step, **mine)


def test_a_nan_stays_with_its_token():
    operands = front_operands(SMALL)
    expected, _ = run.decode(SMALL, front_operands(SMALL))
    operands.hidden_states[1, 17] = torch.nan
    output, row = run.decode(SMALL, operands)
    assert output[1].isnan().all()
    assert row[1].isnan().all()
    assert torch.equal(output[[0, 2, 3]], expected[[0, 2, 3]])


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("lnc", "shared"), [(1, None), (2, "tokens"), (2, "heads")])
def test_tokens_of_one_sequence_see_each_others_rows(lnc, shared, fp8):
    """As in speculative decoding: every token selects the ones before it, of which the other core makes some."""
    tokens, heads = (3, 2) if shared == "heads" else (4, 2)
    case = FrontCase(Case("draft", tokens, heads, 40, lnc=lnc, fp8_cache=fp8, target="trn3" if fp8 else "trn2"))
    assert shared in (None, case.plan.cores_share)
    operands, apart = draft_operands(case), draft_operands(case)
    stale = operands.step.kv_cache.clone()
    output, _ = run.decode(case, operands)
    second_half = after_front_fold(case, apart)
    assert torch.equal(output, run.attention(case.attention, second_half))
    without = run.attention(case.attention, second_half.replace(kv_cache=stale))
    assert (output != without).any(dim=1).tolist() == [token > 0 for token in range(tokens)]


def draft_operands(case):
    """Positions 20, 21, ... of one sequence; all that lie before are selected."""
    operands, at = front_operands(case), case.attention
    positions = torch.arange(20, 20 + at.n_tokens, dtype=torch.int32)
    table = operands.step.block_table[:1].expand(at.n_tokens, -1).contiguous()
    keys = torch.arange(at.n_prior, dtype=torch.int32).expand(at.n_tokens, -1)
    selected = torch.where(keys < positions[:, None], keys, -1).int()
    slots = table[0, (positions // at.block_size).long()] * at.block_size + positions % at.block_size
    step = operands.step.replace(selected=selected, positions=positions, block_table=table)
    return operands.replace(step=step, slot_mapping=slots)


def test_rows_of_zeros_in_an_fp8_cache():
    """A group that is all zero, or next to it, has a scale that is a normal number, and codes of zero."""
    case = FrontCase(Case("zeros", 3, 1, 20, kv_lora_rank=256, fp8_cache=True, context=40, target="trn3"))
    operands = front_operands(case)
    gamma = operands.kv_norm_w.clone()
    gamma[:128], gamma[128:] = 0.0, 1e-39
    operands = operands.replace(kv_norm_w=gamma)
    output, _ = run.decode(case, operands)
    assert output.isfinite().all()
    written = operands.step.kv_cache.view(-1, operands.step.kv_cache.shape[-1])[operands.slot_mapping.long()]
    assert unpack_rows(written, 256)[:, case.attention.rope :].abs().max() <= 2e-36
    scales = written[:, 256:264].contiguous().view(FP32)
    assert (scales >= torch.finfo(FP32).tiny).all()


def test_m1_the_two_rope_layouts_are_different_goldens():
    operands = front_operands(SMALL)
    made = run.qkv(SMALL, operands)
    rope = SMALL.attention.rope
    plain = operands.replace(cos=torch.ones_like(operands.cos), sin=torch.zeros_like(operands.sin)).front()
    cos, sin = operands.cos[:, None].double(), operands.sin[:, None].double()
    interleaved = rotate(plain.q_pe, cos, sin, layout="interleaved")
    half_split = rotate(plain.q_pe, cos, sin, layout="half_split")
    assert compare.relative_rms(made.q_pe, interleaved) <= compare.MAX_RELATIVE_RMS[FP32]
    assert compare.relative_rms(made.q_pe, half_split) > 0.5
    k_pe = rotate(plain.kv_row_cur[:, :rope], cos[:, 0], sin[:, 0], layout="interleaved")
    assert compare.relative_rms(made.kv_row_cur[:, :rope], k_pe) <= compare.MAX_RELATIVE_RMS[FP32]
    layout = inspect.signature(rotate).parameters["layout"]
    assert layout.kind is layout.KEYWORD_ONLY
    assert layout.default is layout.empty
    with pytest.raises(ValueError, match="layout is 'neox'; accepted: 'interleaved' or 'half_split'"):
        rotate(plain.q_pe, cos, sin, layout="neox")  # type: ignore[arg-type]


@pytest.mark.parametrize(("layout", "partner"), [("interleaved", 1), ("half_split", 4)])
def test_rotation_by_hand(layout, partner):
    """[1, 0, ...] turns into cos and sin on the lanes of its pair, and products depend on the distance only."""
    angles = torch.tensor([0.3, 0.03, 0.003, 0.0003], dtype=torch.float64)
    one = torch.zeros(8, dtype=torch.float64)
    one[0] = 1.0
    turned = rotate(one, angles.cos(), angles.sin(), layout=layout)
    assert turned[0] == math.cos(0.3)
    assert turned[partner] == math.sin(0.3)
    assert turned.count_nonzero() == 2
    q, k = torch.randn(2, 8, dtype=torch.float64)

    def product(m, n):
        return rotate(q, (m * angles).cos(), (m * angles).sin(), layout=layout) @ rotate(
            k, (n * angles).cos(), (n * angles).sin(), layout=layout
        )

    torch.testing.assert_close(product(17, 5), product(112, 100))


def test_m7_yarn_scale():
    scale = yarn_softmax_scale(192, factor=40, mscale_all_dim=1)
    assert round(scale, 6) == 0.135234
    assert yarn_softmax_scale(192) == 192**-0.5
    case = Case("m7", 2, 1, 30, context=400, dtype=FP32)
    operands = front_operands(FrontCase(case)).step
    operands = operands.replace(positions=torch.tensor([0, 399], dtype=torch.int32))
    at_scale = operands.exact(scale)
    plain = operands.exact(192**-0.5)
    assert torch.equal(at_scale[0], plain[0])  # position 0 hides it
    assert compare.relative_rms(at_scale[1], plain[1]) > 0.1


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("head_dim is 0", {"head_dim": 0}),
        ("factor is -1", {"factor": -1}),
        ("mscale_all_dim is nan", {"mscale_all_dim": math.nan}),
        ("mscale_all_dim is 1e.300; accepted", {"mscale_all_dim": 1e300}),
        ("head_dim is 1000", {"head_dim": 10**400}),
        ("factor is 1000", {"factor": 10**400}),
    ],
)
def test_bad_scales_are_refused_by_name(words, changes):
    with pytest.raises(ValueError, match=words):
        yarn_softmax_scale(**{"head_dim": 192, "factor": 40, "mscale_all_dim": 1, **changes})
