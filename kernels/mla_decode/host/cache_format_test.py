"""fp8 rows: the format byte by byte, and the attention over them."""

import dataclasses
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mla_decode.host.cache_format import pack_rows, row_bytes, unpack_rows
from kernels.mla_decode.oracle import compare, run
from kernels.mla_decode.oracle.cases import Case, normal_operands
from kernels.mla_decode.oracle.front_cases import FrontCase, front_operands

BYTES = torch.zeros(1, 260, dtype=torch.uint8)
CASE = Case("fp8", 3, 2, 200, kv_lora_rank=256, fp8_cache=True, target="trn3")


def test_deepseeks_row_is_656_bytes():
    assert row_bytes(512, 64) == 656


def test_a_row_by_hand():
    """Code 0x38 is 1.0, 0xb9 is -1.125, 0x7e is 448; scales are little-endian fp32, no powers of two."""
    codes = bytearray(256)
    codes[0], codes[1], codes[130] = 0x38, 0xB9, 0x7E
    row = bytes(codes) + struct.pack("<ff", 0.1, 3.7) + struct.pack("<HH", 0x3F80, 0xC000)  # bf16 1.0, -2.0
    unpacked = unpack_rows(torch.frombuffer(bytearray(row), dtype=torch.uint8)[None], 256)[0]
    scales = [struct.unpack("<f", struct.pack("<f", scale))[0] for scale in (0.1, 3.7)]
    assert unpacked.shape == (258,)
    assert unpacked[[0, 1, 2, 3, 4, 132]].tolist() == [1.0, -2.0, scales[0], -1.125 * scales[0], 0.0, 448 * scales[1]]
    assert unpacked.count_nonzero() == 5


@settings(max_examples=30, derandomize=True, deadline=None, database=None)
@given(seed=st.integers(0, 1000), groups=st.integers(1, 4), rope=st.sampled_from([2, 64]))
def test_packing_loses_at_most_half_a_step(seed, groups, rope):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, rope + 128 * groups, generator=generator) * 10.0 ** torch.randint(-6, 6, (5, 1)).float()
    packed = pack_rows(rows, rope)
    assert packed.shape == (5, row_bytes(128 * groups, rope))
    back = unpack_rows(packed, 128 * groups)
    assert torch.equal(back[:, :rope], rows[:, :rope].bfloat16().double())
    latent = rows[:, rope:].double().unflatten(-1, (-1, 128))
    error = (back[:, rope:].unflatten(-1, (-1, 128)) - latent).abs()
    smallest = latent.abs().amax(dim=-1, keepdim=True) / 448 * 2.0**-10
    assert (error <= latent.abs() / 16 * (1 + 1e-6) + smallest * (1 + 1e-6)).all()


@pytest.mark.parametrize(
    ("words", "rows"), [("multiple of 128", torch.ones(1, 100)), ("finite", torch.full((1, 192), torch.nan))]
)
def test_bad_rows_are_refused(words, rows):
    with pytest.raises(ValueError, match=words):
        pack_rows(rows, 64)


@pytest.mark.parametrize(
    ("error", "words", "call", "arguments"),
    [
        (TypeError, "rows is a NoneType; accepted: a tensor of rows", pack_rows, (None, 64)),
        (TypeError, "rows is torch.uint8; accepted: torch.bfloat16 or", pack_rows, (BYTES, 64)),
        (TypeError, "rope must be an integer, got None", pack_rows, (torch.ones(1, 192), None)),
        (ValueError, "rope must be at least 0, got -64", pack_rows, (torch.ones(1, 192), -64)),
        (TypeError, "packed is a list; accepted: a tensor of rows", unpack_rows, ([1], 128)),
        (TypeError, "packed is torch.float32; accepted: torch.uint8", unpack_rows, (torch.ones(1, 260), 128)),
        (ValueError, r"packed is \[\], a single number", unpack_rows, (BYTES[0, 0], 128)),
        (TypeError, "kv_lora_rank must be an integer, got 128.0", unpack_rows, (BYTES, 128.0)),
        (ValueError, "kv_lora_rank is 192; accepted: a multiple of 128", unpack_rows, (BYTES, 192)),
        (ValueError, r"packed is \[1, 131\]; .*: 132 bytes of codes", unpack_rows, (BYTES[:, :131], 128)),
        (ValueError, r"packed is \[1, 133\]; .* two for each number", unpack_rows, (BYTES[:, :133], 128)),
    ],
)
def test_what_are_no_rows_is_refused_by_name(error, words, call, arguments):
    with pytest.raises(error, match=words):
        call(*arguments)


def test_scales_of_every_group_count():
    """Scales far apart: with two of them exchanged the result would be another."""
    operands = normal_operands(CASE)
    rows = unpack_rows(operands.kv_cache, 256)
    rows[..., 64:192] *= 37.0
    changed = operands.replace(kv_cache=pack_rows(rows, 64))
    result = run.attention(CASE, changed)
    exact, rounded = changed.exact(CASE.softmax_scale), changed.rounded(CASE.softmax_scale)
    assert compare.relative_rms(result, exact) <= compare.MAX_OF_ROUNDED * compare.relative_rms(rounded, exact)
    assert compare.relative_rms(result, operands.exact(CASE.softmax_scale)) > 0.5


def test_pages_of_garbage_that_no_valid_key_names():
    """0xff is NaN as a code, as a scale and as bf16."""
    operands = normal_operands(CASE)
    garbage = torch.full((2, *operands.kv_cache.shape[1:]), 0xFF, dtype=torch.uint8)
    table = torch.cat([operands.block_table, torch.full((3, 1), operands.kv_cache.shape[0], dtype=torch.int32)], dim=1)
    selected = operands.selected.clone()
    selected[:, 100:] = 400 + torch.arange(100, dtype=torch.int32) % 16
    changed = operands.replace(kv_cache=torch.cat([operands.kv_cache, garbage]), block_table=table, selected=selected)
    result = run.attention(CASE, changed)
    assert result.isfinite().all()
    assert torch.equal(result, run.attention(CASE, operands.replace(selected=selected[:, :100])))


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (ValueError, "target is 'trn2'; accepted with an fp8 cache: 'trn3'", {"target": "trn2"}),
        (ValueError, "dma_transposed_chunks is 1; accepted with an fp8 cache: 0", {"dma_transposed_chunks": 1}),
        (ValueError, "itemsize is 4; accepted with an fp8 cache", {"dtype": torch.float32}),
    ],
)
def test_what_an_fp8_cache_does_not_go_with_is_refused_by_name(error, words, changes):
    with pytest.raises(error, match=words):
        _ = dataclasses.replace(CASE, **changes).plan


def test_other_row_widths_and_front_folds_are_refused_by_name():
    operands = normal_operands(CASE)
    with pytest.raises(ValueError, match="accepted: kv_row_dim 392, bytes of an fp8 row of q_pe and q_absorbed"):
        run.attention(CASE, operands.replace(kv_cache=operands.kv_cache[..., :-1].contiguous()))
    fused = front_operands(FrontCase(CASE))
    narrow = fused.replace(step=fused.step.replace(kv_cache=fused.step.kv_cache[..., :-1].contiguous()))
    with pytest.raises(ValueError, match="accepted: kv_row_dim 392, bytes of an fp8 row of cos and q_absorb_w"):
        run.decode(FrontCase(CASE), narrow)
