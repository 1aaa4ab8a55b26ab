"""The device's prior index equals the host's bit for bit; the host's is held against a plain loop elsewhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nkisim
from common.hardware import TRN2
from kernels.mla_decode import build_prior_index, build_prior_index_on_device
from kernels.mla_decode.device.index_kernel import IndexConfig, prior_index
from kernels.mla_decode.oracle import run
from kernels.mla_decode.oracle.cases import PRODUCTION, Case, normal_operands

ODD = [-(2**31), -123456, -1, 114514, 2**24, 2**24 + 1, 2**24 + 2, 2147483647]


@st.composite
def selections(draw):
    block_size = 2 ** draw(st.integers(0, 7))
    tokens, pages, blocks = draw(st.integers(1, 9)), draw(st.integers(1, 6)), draw(st.integers(1, 9))
    n_prior = draw(st.sampled_from([1, 100, 127, 128, 129, 300, 2048]))
    width = draw(st.integers(1, n_prior))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    last = pages * block_size

    def mixed(values):
        odd = torch.tensor([*ODD, blocks * block_size])
        chosen = odd[torch.randint(len(odd), values.shape, generator=generator)]
        return torch.where(torch.rand(values.shape, generator=generator) < 0.2, chosen, values).int()

    return {
        "selected": mixed(torch.randint(-2, last + 3, (tokens, width), generator=generator)),
        "positions": torch.randint(0, last + 5, (tokens,), generator=generator).int(),
        "block_table": mixed(torch.randint(-1, blocks + 2, (tokens, pages), generator=generator)),
        "block_size": block_size,
        "n_rows": blocks * block_size,
        "n_prior": n_prior,
    }


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(call=selections())
def test_tables_are_the_hosts(call):
    assert_same(build_prior_index_on_device(**call), build_prior_index(**call))


def assert_same(found, expected):
    for table, same in zip(found, expected, strict=True):
        assert table.dtype == same.dtype
        assert torch.equal(table, same)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_production_shape(target):
    case = PRODUCTION[0]
    operands = normal_operands(case)
    blocks, _, block_size, _ = operands.kv_cache.shape
    found = build_prior_index_on_device(
        operands.selected,
        operands.positions,
        operands.block_table,
        block_size,
        blocks * block_size,
        case.n_prior,
        target=target,
    )
    assert_same(found, operands.index(case.n_prior))


def test_every_token_has_its_own_position():
    """More tokens than are worked on together, each with keys at and beyond its position."""
    positions = torch.randint(1, 500, (20,), generator=torch.Generator().manual_seed(0)).int()
    call = {
        "selected": torch.arange(500, dtype=torch.int32).expand(20, 500).contiguous(),
        "positions": positions,
        "block_table": torch.arange(20 * 32, dtype=torch.int32).reshape(20, 32),
        "block_size": 16,
        "n_rows": 20 * 32 * 16,
        "n_prior": 2048,
    }
    found = build_prior_index_on_device(**call)
    assert_same(found, build_prior_index(**call))
    assert torch.equal((found.prior_key_pos < positions[None, :, None]).sum(dim=(0, 2)), positions.long())


@pytest.mark.parametrize(
    ("tokens", "width", "sbuf_bytes"), [(128, 16384, 4 * 16384 + 512), (128, 2048, 4 * 2048 + 512), (128, 128, 3072)]
)
def test_memory_is_what_the_kernel_says(tokens, width, sbuf_bytes):
    """Without a plan: far below SBUF for the widest selection, too."""
    config = IndexConfig(tokens, width, width, block_size=64, block_shift=6, n_rows=2**20)
    shapes = ((tokens, width), (tokens,), (tokens, 256))
    operands = [torch.empty(shape, dtype=torch.int32, device="meta") for shape in shapes]
    options = nkisim.Options(target="trn2", numerics=False)
    (core,) = nkisim.run(prior_index[1], *operands, config, options=options).cores
    assert (core.memory.sbuf_peak_bytes, core.memory.psum_peak_banks) == (sbuf_bytes, 1)
    assert sbuf_bytes < TRN2.sbuf_usable_bytes_per_partition // 3


def test_attention_takes_them():
    case = Case("index", 3, 2, 300)
    operands = normal_operands(case)
    rows = operands.kv_cache.shape[0] * operands.kv_cache.shape[2]
    selection = (operands.selected, operands.positions, operands.block_table)
    index = build_prior_index_on_device(*selection, case.block_size, rows, case.n_prior)
    assert torch.equal(run.attention(case, operands, index), run.attention(case, operands))


def good(**changes):
    return {
        "selected": torch.zeros(2, 3, dtype=torch.int32),
        "positions": torch.zeros(2, dtype=torch.int32),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "block_size": 4,
        "n_rows": 12,
        "n_prior": 3,
        **changes,
    }


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (
            TypeError,
            "selected is torch.int64; accepted on the device: torch.int32",
            {"selected": good()["selected"].long()},
        ),
        (ValueError, "block_size is 3; accepted on the device: a power of two", {"block_size": 3}),
        (ValueError, "n_rows is 16777220; accepted on the device: up to 16777216", {"n_rows": 16777220}),
        (ValueError, "n_prior is 16385; accepted on the device: up to 16384", {"n_prior": 16385}),
        (ValueError, "entries of block_table is 8388610", {"block_table": torch.zeros(2, 4194305, dtype=torch.int32)}),
        (ValueError, "block_table has 3 rows; accepted: 2", {"block_table": torch.zeros(3, 2, dtype=torch.int32)}),
        (ValueError, "trn7", {"target": "trn7"}),
    ],
)
def test_bad_input_is_refused_by_name(error, words, changes):
    with pytest.raises(error, match=words):
        build_prior_index_on_device(**good(**changes))
    build_prior_index_on_device(**good())
