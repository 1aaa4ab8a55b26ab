"""The cases of the field reports by id (table in the root README), with the values given there."""

import pytest
import torch

import nki
import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.oracle import compare, run
from kernels.mla_decode.oracle.cases import Case, normal_operands

FP32 = torch.float32
CASE = Case("reports", 3, 2, 260, context=400, dtype=FP32)
INVALID = [-(2**31), -123456, -1, 400 // 16 * 16 * 3, 114514, 2147483647]


def assert_right(case, operands):
    result = run.attention(case, operands)
    assert result.isfinite().all()
    error = compare.relative_rms(result, operands.exact(case.softmax_scale))
    assert error <= compare.MAX_RELATIVE_RMS[case.dtype], error
    return result


def test_m2_a_whole_tile_of_minus_one_first():
    operands = normal_operands(CASE)
    selected = torch.cat([torch.full((3, 128), -1), operands.selected[:, :132]], dim=1).int()
    assert_right(CASE, operands.replace(selected=selected))


def test_m3_invalid_indices_are_as_if_not_there():
    operands = normal_operands(CASE)
    before = run.attention(CASE, operands)
    slots = torch.arange(0, 260, 3)
    with_invalid, without = operands.selected.clone(), operands.selected.clone()
    with_invalid[1, slots] = torch.tensor([INVALID[i % 6] for i in range(len(slots))], dtype=torch.int32)
    without[1, slots] = -1
    result = assert_right(CASE, operands.replace(selected=with_invalid))
    assert torch.equal(result, run.attention(CASE, operands.replace(selected=without)))
    assert torch.equal(result[[0, 2]], before[[0, 2]])
    assert not torch.equal(result[1], before[1])


def test_m4_in_range_garbage_behind_the_valid_keys_equals_truncation():
    """Ids at or beyond the own position, in pages that exist."""
    operands = normal_operands(CASE).replace(positions=torch.full((3,), 100, dtype=torch.int32))
    selected = torch.full((3, 260), 399, dtype=torch.int32)
    selected[:, :100] = torch.randperm(100).int()
    selected[:, 150:] = torch.randint(100, 400, (3, 110)).int()
    result = assert_right(CASE, operands.replace(selected=selected))
    assert torch.equal(result, run.attention(CASE, operands.replace(selected=selected[:, :100])))


@pytest.mark.parametrize("length", [1, 63, 64, 2047, 2048, 2049])
def test_m5_up_to_n_prior_keys_it_is_dense_attention(length):
    case = Case("m5", 1, 2, 2048, rope=8, v_head_dim=8, hidden=256, dtype=FP32, context=length + 1)
    operands = normal_operands(case)
    result = assert_right(case, operands)
    every = operands.replace(selected=torch.arange(length, dtype=torch.int32)[None])
    distance = compare.relative_rms(result, every.exact(case.softmax_scale))
    assert (distance <= compare.MAX_RELATIVE_RMS[FP32]) == (length <= 2048)


@pytest.mark.parametrize(("page", "length"), [(16, 47), (16, 48), (16, 49), (64, 127), (64, 128), (64, 129), (1, 30)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP32])
def test_m6_pages_of_nan_that_no_valid_key_names(page, length, dtype):
    """The table's tail names them, and selected ids run on into it; so do rows of the last page behind the length."""
    case = Case("m6", 2, 2, 200, context=length + 1, block_size=page, dtype=dtype)
    operands = normal_operands(case)
    blocks = operands.kv_cache.shape[0]
    cache = torch.cat([operands.kv_cache, torch.full((3, *operands.kv_cache.shape[1:]), torch.nan, dtype=dtype)])
    for token in range(2):
        for position in range(length, operands.block_table.shape[1] * page):
            cache[operands.block_table[token, position // page], 0, position % page] = torch.nan
    tail = torch.tensor([[blocks, blocks + 1, blocks + 2]] * 2, dtype=torch.int32)
    selected = torch.arange(200, dtype=torch.int32).expand(2, 200).clone()
    assert_right(
        case,
        operands.replace(kv_cache=cache, block_table=torch.cat([operands.block_table, tail], dim=1), selected=selected),
    )


def test_m6_rows_of_an_earlier_token_do_not_show_in_skipped_slots():
    """More tokens than key buffers; the earlier ones' keys are NaN, which stays with them."""
    case = Case("m6b", 12, 1, 130, context=200, dtype=FP32)
    operands = normal_operands(case)
    cache = operands.kv_cache.clone()
    cache[operands.block_table[:6].flatten()] = torch.nan
    selected = operands.selected.clone()
    selected[6:, 5:] = -1
    result = run.attention(case, operands.replace(kv_cache=cache, selected=selected))
    assert case.plan.key_buffers < 12
    assert result[:6].isnan().all()
    exact = operands.replace(selected=selected).exact(case.softmax_scale)
    assert compare.relative_rms(result[6:], exact[6:]) <= compare.MAX_RELATIVE_RMS[FP32]


def test_m8_queries_x_100():
    case = Case("m8", 3, 2, 260)
    operands = normal_operands(case)
    assert_right(case, operands.replace(q_absorbed=operands.q_absorbed * 100, q_pe=operands.q_pe * 100))


@pytest.mark.parametrize("chunks", [0, 1])
def test_m9_an_index_of_n_rows_is_skipped(chunks):
    """The tables give skipped slots the row n_rows, one beyond the last."""
    case = Case("m9", 2, 2, 5, context=20, dma_transposed_chunks=chunks)
    operands = normal_operands(case)
    selected = torch.tensor([[3, 1, -1, 0, 2], [4, 3, 2, 1, 0]], dtype=torch.int32)
    operands = operands.replace(selected=selected)
    n_rows = operands.kv_cache.shape[0] * operands.kv_cache.shape[2]
    assert (operands.index(5).prior_rows_natural[:5, 0, 0].to(torch.int64) == n_rows).tolist()[2]
    assert_right(case, operands)


@nki.jit
def copy_across(b):
    """h7: a DMA between views of equal element counts and other shapes of their parents."""
    a = nl.ndarray((128, 3, 64), dtype=b.dtype, buffer=nl.sbuf, name="a")
    out = nl.ndarray((128, 3, 64), dtype=b.dtype, buffer=nl.shared_hbm, name="out")
    for m in range(3):
        nisa.dma_copy(dst=a[:, m, :], src=b[m, :, :])
    nisa.dma_copy(dst=out, src=a)
    return out


def test_h7_dma_between_slices_of_equal_element_counts():
    b = torch.randn(3, 128, 64)
    assert torch.equal(nki.simulate(copy_across)(b), b.permute(1, 0, 2))


def test_h8_fp8_caches_are_refused_with_what_is_accepted():
    operands = normal_operands(CASE)
    eight = operands.replace(kv_cache=operands.kv_cache.to(torch.float8_e4m3fn))
    with pytest.raises(
        TypeError, match=r"kv_cache is torch.float8_e4m3fn; accepted: .* torch.bfloat16 or torch.float32"
    ):
        run.attention(CASE, eight)


def test_h13_page_size_8_and_2048_keys():
    """256 pages per token are no limit here: the gather takes rows, 128 to a column of its index."""
    case = Case("h13", 1, 1, 2048, rope=8, v_head_dim=8, hidden=128, context=2100, block_size=8)
    assert_right(case, normal_operands(case))
