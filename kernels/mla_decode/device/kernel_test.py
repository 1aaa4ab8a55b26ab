"""The attention kernel on the simulator against the fp64 reference. Results come first, then the answer (m10)."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mla_decode.device.config import Schedule
from kernels.mla_decode.oracle import compare, run
from kernels.mla_decode.oracle.cases import CORNERS, Case, normal_operands
from kernels.mla_decode.planning.plan import DEFAULT_SCHEDULE

BF16, FP32 = torch.bfloat16, torch.float32
SMALL = Case("small", 5, 3, 200)


def assert_right(case, operands):
    result = run.attention(case, operands)
    assert result.dtype == case.dtype
    exact = operands.exact(case.softmax_scale)
    error = compare.relative_rms(result, exact)
    assert error <= compare.MAX_RELATIVE_RMS[case.dtype], error
    if case.dtype is BF16:
        assert error <= compare.MAX_OF_ROUNDED * compare.relative_rms(operands.rounded(case.softmax_scale), exact), (
            error
        )
    return result


@pytest.mark.parametrize("case", CORNERS, ids=lambda case: case.name)
def test_corner(case):
    assert_right(case, normal_operands(case))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("queries_x_100", BF16),
        ("all_logits_very_negative", BF16),
        ("one_dominant_key", BF16),
        ("one_dominant_key", FP32),
    ],
)
@pytest.mark.parametrize("schedule", [DEFAULT_SCHEDULE, Schedule(head_major=True)], ids=["keys", "heads"])
def test_adversarial_inputs(kind, dtype, schedule):
    case = dataclasses.replace(SMALL, dtype=dtype, schedule=schedule)
    assert_right(case, adversarial(kind, normal_operands(case)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["queries_x_100", "all_logits_very_negative"])
def test_large_logits_in_fp32(kind, seed):
    """m8. A score is rounded to fp32, and its error is its softmax weight's relative error: shared by near-tied keys.

    2**-24 of the largest score bounds one weight's error; the outputs' RMS was up to 0.19 of that on 16 inputs.
    """
    case = dataclasses.replace(SMALL, dtype=FP32)
    operands = adversarial(kind, normal_operands(case, seed))
    queries = torch.cat([operands.q_pe, operands.q_absorbed], dim=-1).double()
    rows = [rows.double().reshape(-1, queries.shape[-1]) for rows in operands.rows()]
    largest = max(float((query @ rows.T).abs().max()) for query, rows in zip(queries, rows, strict=True))
    error = compare.relative_rms(run.attention(case, operands), operands.exact(case.softmax_scale))
    assert error <= compare.MAX_RELATIVE_RMS[FP32] + 0.25 * 2.0**-24 * case.softmax_scale * largest


@pytest.mark.parametrize("seed", range(2))
def test_deepseeks_widths_in_fp32(seed):
    """One head at 512 and 64: products of 576 features."""
    case = Case("wide", 6, 1, 1500, 512, context=1600, dtype=FP32)
    assert_right(case, normal_operands(case, seed))


def adversarial(kind, operands):
    if kind == "queries_x_100":
        return operands.replace(q_absorbed=operands.q_absorbed * 100, q_pe=operands.q_pe * 100)
    if kind == "all_logits_very_negative":
        # Every logit lies about 600 below zero, where exp alone gives 0.
        return operands.replace(
            q_absorbed=-operands.q_absorbed.abs() * 100,
            q_pe=-operands.q_pe.abs(),
            kv_cache=operands.kv_cache.abs(),
            kv_row_cur=operands.kv_row_cur.abs(),
        )
    cache = operands.kv_cache.clone()
    size = cache.shape[2]
    for token, keys in enumerate(operands.keys()):
        block = int(operands.block_table[token, keys[7] // size])
        rope = operands.q_pe.shape[2]
        cache[block, 0, keys[7] % size, rope:] = operands.q_absorbed[token].sum(dim=0)
    return operands.replace(kv_cache=cache)


@pytest.mark.parametrize("chunks", [1, 2])
def test_keys_transposed_by_dma_give_the_same_bits(chunks):
    """The transposes are exact either way."""
    case = Case("chunks", 3, 2, 300, kv_lora_rank=256, context=300)
    operands = normal_operands(case)
    by_dma = run.attention(dataclasses.replace(case, dma_transposed_chunks=chunks), operands)
    assert torch.equal(by_dma, run.attention(case, operands))


def test_a_token_does_not_depend_on_its_neighbours():
    """Bit for bit: whole batch, the batch in reverse, each token alone."""
    case = Case("batch", 6, 2, 150)
    operands = normal_operands(case)
    together = run.attention(case, operands)
    assert torch.equal(run.attention(case, tokens_of(operands, range(5, -1, -1))).flip(0), together)
    for token in range(case.n_tokens):
        alone = run.attention(dataclasses.replace(case, n_tokens=1), tokens_of(operands, [token]))
        assert torch.equal(alone[0], together[token])


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -3.0e38])
@pytest.mark.parametrize(
    ("schedule", "chunks", "group"),
    [
        (DEFAULT_SCHEDULE, None, None),
        (DEFAULT_SCHEDULE, 2, 4),
        (Schedule(head_major=True), 1, 4),
        (Schedule(head_major=True, latent_bands=True), 2, None),
        (Schedule(late_weighted_sum=True), 1, 1),
        (Schedule(stationary_weights=True), 1, 4),
        (Schedule(True, True, True, True, True), 1, 4),
    ],
)
def test_garbage_stays_where_it_is_in_every_schedule(schedule, chunks, group, garbage):
    """Bit for bit: in rows that no valid key names it shows nowhere; in one token's rows it stays with that token."""
    case = Case("all", 9, 3, 300, kv_lora_rank=256, v_head_dim=16, hidden=64, context=330)
    case = dataclasses.replace(case, schedule=schedule, dma_transposed_chunks=chunks, group_tokens=group)
    operands = normal_operands(case)
    selected = operands.selected.clone()
    selected[:, ::3], selected[4], selected[5, :128] = -1, -1, -1
    operands = operands.replace(selected=selected)
    named = torch.zeros(operands.kv_cache.shape[0], 1, case.block_size, dtype=torch.bool)
    for token, keys in enumerate(operands.keys()):
        for key in keys:
            named[operands.block_table[token, key // case.block_size], 0, key % case.block_size] = True
    clean = assert_right(case, operands)
    cache = operands.kv_cache.masked_fill(~named[..., None], garbage)
    assert torch.equal(run.attention(case, operands.replace(kv_cache=cache)), clean)
    cache = operands.kv_cache.clone()
    cache[operands.block_table[2]] = garbage
    spoilt = run.attention(case, operands.replace(kv_cache=cache))
    assert (spoilt != clean).any(dim=1).tolist() == [token == 2 for token in range(9)]


@pytest.mark.parametrize("tokens", [8, 9])
def test_a_token_alone_is_as_in_a_batch_with_transposes_by_dma(tokens):
    """The plan chooses them from 8 tokens on; a token must not show it."""
    case = Case("chosen", tokens, 2, 150, dma_transposed_chunks=None)
    operands = normal_operands(case)
    together = run.attention(case, operands)
    for token in (0, 7):
        one = dataclasses.replace(case, n_tokens=1)
        assert torch.equal(run.attention(one, tokens_of(operands, [token]))[0], together[token])


@pytest.mark.parametrize(
    ("cores", "n_prior", "message"),
    [
        (2, 20, "launched on 2 cores; accepted: 1, which the plan is made for"),  # else both would do every token
        (1, 21, "n_prior is 21; accepted: 20, which the plan is made for"),
    ],
)
def test_a_call_that_the_plan_is_not_for_is_refused(cores, n_prior, message):
    case = Case("cores", 2, 1, 20)
    operands = normal_operands(case)
    with pytest.raises(AssertionError, match=message):
        run.planned_attention(dataclasses.replace(case, lnc=cores, n_prior=n_prior), case.plan, operands)


@pytest.mark.parametrize("shared", ["tokens", "heads"])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_two_cores_give_what_one_gives(dtype, shared):
    """Not bit for bit: the simulator adds up a product of fewer rows in another order, which the chip does not."""
    case = Case("cores", 6, 2, 150, dtype=dtype)
    operands = normal_operands(case)
    two = run.attention(dataclasses.replace(case, lnc=2, cores_share=shared), operands)
    assert compare.relative_rms(two, run.attention(case, operands).double()) <= compare.MAX_RELATIVE_RMS[dtype]


def tokens_of(operands, tokens):
    order = torch.tensor(list(tokens))
    names = ("q_absorbed", "q_pe", "kv_row_cur", "selected", "positions", "block_table")
    return operands.replace(**{name: getattr(operands, name)[order] for name in names})


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_order_of_selected_keys_does_not_matter(dtype):
    case = dataclasses.replace(SMALL, dtype=dtype)
    operands = normal_operands(case)
    order = torch.randperm(case.n_prior, generator=torch.Generator().manual_seed(1))
    result = run.attention(case, operands)
    permuted = run.attention(case, operands.replace(selected=operands.selected[:, order]))
    assert compare.relative_rms(permuted, result.double()) <= compare.MAX_RELATIVE_RMS[dtype]


def test_every_key_and_feature_counts():
    """One key's value, or one feature of its key, changed: its token's output changes and no other's."""
    case = Case("counts", 3, 1, 260, kv_lora_rank=256, dtype=FP32, context=300)
    operands = normal_operands(case)
    before = run.attention(case, operands)
    keys = operands.keys()
    for slot, column in [(0, 0), (127, 63), (128, 64), (200, 64 + 127), (255, 64 + 128), (256, 64 + 255), (259, 5)]:
        cache = operands.kv_cache.clone()
        page, row = divmod(keys[1][slot], case.block_size)
        cache[operands.block_table[1, page], 0, row, column] += 3.0
        changed = operands.replace(kv_cache=cache)
        after = assert_right(case, changed)
        different = (after != before).any(dim=1).tolist()
        assert different == [False, True, False], (slot, column)


@pytest.mark.parametrize("own", [0, 1, 2])
def test_key_at_the_own_position_is_masked_by_the_kernel_and_the_one_before_is_not(own):
    """Tables made by hand, so that only the kernel's mask decides."""
    case = Case("mask", 2, 2, 3, context=20, dtype=FP32)
    operands = normal_operands(case)
    selected = torch.tensor([[0, 1, 2], [0, 1, 2]], dtype=torch.int32)
    index = operands.replace(selected=selected, positions=torch.tensor([3, 3], dtype=torch.int32)).index(3)
    operands = operands.replace(selected=selected, positions=torch.tensor([own, 3], dtype=torch.int32))
    result = run.attention(case, operands, index)
    exact = operands.exact(case.softmax_scale)
    assert compare.relative_rms(result, exact) <= compare.MAX_RELATIVE_RMS[FP32]


@pytest.mark.parametrize("garbage", [3.0e38, -3.0e38, torch.nan, torch.inf])
def test_masked_scores_of_any_size_do_not_leak(garbage):
    """A key whose score is garbage and whose values are not: only the mask keeps it out."""
    case = Case("garbage", 2, 2, 5, context=20, dtype=FP32)
    operands = normal_operands(case)
    selected = torch.tensor([[0, 1, 2, 3, 4]] * 2, dtype=torch.int32)
    own = torch.tensor([3, 3], dtype=torch.int32)
    index = operands.replace(selected=selected, positions=own + 9).index(5)
    operands = operands.replace(selected=selected, positions=own)
    before = run.attention(case, operands, index)
    cache = operands.kv_cache.clone()
    for token in range(2):
        cache[operands.block_table[token, 0], 0, 3:5, 0] = garbage  # of k_pe, which the weighted sum does not read
    assert torch.equal(run.attention(case, operands.replace(kv_cache=cache), index), before)


def test_no_valid_key_gives_the_current_tokens_value():
    case = Case("none", 3, 2, 40, dtype=FP32)
    operands = normal_operands(case)
    operands = operands.replace(positions=torch.tensor([0, 399, 0], dtype=torch.int32))
    result = assert_right(case, operands)
    value = torch.einsum("hvl,tl->thv", operands.out_absorb_w, operands.kv_row_cur[:, case.rope :])
    expected = value.reshape(3, -1) @ operands.o_proj_w
    torch.testing.assert_close(result[[0, 2]], expected[[0, 2]], rtol=1e-4, atol=1e-5)


def test_inputs_are_left_as_they_are():
    operands = normal_operands(SMALL)
    index = operands.index(SMALL.n_prior)
    given = [*(getattr(operands, field.name) for field in dataclasses.fields(operands)), *index]
    before = [tensor.clone() for tensor in given]
    run.attention(SMALL, operands, index)
    assert all(torch.equal(was, tensor) for was, tensor in zip(before, given, strict=True))


def test_views_are_taken():
    operands = normal_operands(SMALL)
    expected = run.attention(SMALL, operands)
    strided = operands.replace(
        q_absorbed=operands.q_absorbed.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        o_proj_w=operands.o_proj_w.T.contiguous().T,
        kv_row_cur=torch.cat([operands.kv_row_cur, operands.kv_row_cur], dim=1)[:, : operands.kv_row_cur.shape[1]],
    )
    assert torch.equal(run.attention(SMALL, strided), expected)


@st.composite
def any_case(draw):
    latents = draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([BF16, FP32]))
    return Case(
        "random",
        n_tokens=draw(st.integers(1, 9)),
        n_heads=draw(st.sampled_from([1, 2, 3, 5, 8, 17, 33, 70])),
        n_prior=draw(st.integers(1, 300)),
        kv_lora_rank=128 * latents,
        rope=2 * draw(st.integers(1, 64)),
        v_head_dim=draw(st.integers(1, 128)),
        hidden=draw(st.integers(100, 700)),
        dtype=dtype,
        context=draw(st.integers(2, 400)),
        block_size=draw(st.sampled_from([1, 3, 16, 64])),
        dma_transposed_chunks=0 if dtype is FP32 else draw(st.integers(0, latents)),
    )


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(case=any_case(), seed=st.integers(0, 1000))
def test_random_shapes(case, seed):
    assert_right(case, normal_operands(case, seed))
