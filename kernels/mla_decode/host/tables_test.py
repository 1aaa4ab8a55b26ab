"""The prior index against a plain loop, and what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mla_decode.host.tables import LAST_POSITION, build_prior_index

P = 128


def by_loop(selected, positions, block_table, block_size, n_rows, n_prior):
    """Row and position of every slot of every token, [n_tokens][128 * tiles] each."""
    slots = P * -(-n_prior // P)
    rows, key_positions = [], []
    for keys, own, pages in zip(selected.tolist(), positions.tolist(), block_table.tolist(), strict=True):
        token_rows, token_positions = [n_rows] * slots, [own] * slots
        for slot, key in enumerate(keys):
            if 0 <= key < own and key // block_size < len(pages):
                page = pages[key // block_size]
                if 0 <= page < n_rows // block_size:
                    token_rows[slot] = page * block_size + key % block_size
                    token_positions[slot] = key
        rows.append(token_rows)
        key_positions.append(token_positions)
    return rows, key_positions


def assert_tables(index, rows, key_positions):
    """Slot k of a token is at partition k % 128 of tile k // 128; the batched gather's order is the seed's rule."""
    tokens, tiles = len(rows), len(rows[0]) // P
    assert [table.dtype for table in index] == [torch.int32, torch.float32, torch.uint32]
    assert all(table.shape == (P, tokens, tiles) for table in index)
    consumed, key_pos, natural = (table.tolist() for table in index)
    for token in range(tokens):
        for tile in range(tiles):
            for p in range(P):
                slot = tile * P + p
                assert natural[p][token][tile] == rows[token][slot]
                assert key_pos[p][token][tile] == key_positions[token][slot]
                i = p * tiles + tile
                assert consumed[i % P][token][i // P] == rows[token][slot]


@st.composite
def selections(draw):
    block_size = draw(st.sampled_from([1, 2, 7, 16, 64]))
    tokens, pages, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 9))
    n_prior = draw(st.integers(1, 300))
    width = draw(st.integers(1, n_prior))
    seed = draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    last = pages * block_size
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    selected = torch.randint(-2, last + 3, (tokens, width), generator=generator)
    odd = torch.tensor([-(2**31), -123456, -1, blocks * block_size, 114514, 2147483647])
    selected = torch.where(
        torch.rand(tokens, width, generator=generator) < 0.2,
        odd[torch.randint(len(odd), (tokens, width), generator=generator)],
        selected,
    )
    return {
        "selected": selected.to(dtype),
        "positions": torch.randint(0, last + 5, (tokens,), generator=generator).to(dtype),
        "block_table": torch.randint(-1, blocks + 2, (tokens, pages), generator=generator).to(dtype),
        "block_size": block_size,
        "n_rows": blocks * block_size,
        "n_prior": n_prior,
    }


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(call=selections())
def test_every_slot_is_what_a_loop_gives(call):
    assert_tables(build_prior_index(**call), *by_loop(**call))


def good(**changes):
    return {
        "selected": torch.tensor([[0, 1, 5], [2, -1, -1]], dtype=torch.int32),
        "positions": torch.tensor([7, 3], dtype=torch.int32),
        "block_table": torch.tensor([[0, 2], [1, 3]], dtype=torch.int32),
        "block_size": 4,
        "n_rows": 16,
        "n_prior": 3,
        **changes,
    }


def test_by_hand():
    index = build_prior_index(**good())
    assert index.prior_rows_natural[:4, :, 0].to(torch.int64).tolist() == [[0, 6], [1, 16], [9, 16], [16, 16]]
    assert index.prior_key_pos[:4, :, 0].tolist() == [[0, 2], [1, 3], [5, 3], [7, 3]]
    assert torch.equal(index.prior_rows[:, :, 0].to(torch.int64), index.prior_rows_natural[:, :, 0].to(torch.int64))


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (TypeError, "selected is torch.float32", {"selected": torch.zeros(2, 3)}),
        (TypeError, "positions is list", {"positions": [7, 3]}),
        (TypeError, "block_table is torch.int16", {"block_table": torch.zeros(2, 2, dtype=torch.int16)}),
        (ValueError, r"selected has shape \[3\]", {"selected": torch.zeros(3, dtype=torch.int32)}),
        (ValueError, "selected has 1 rows; accepted: 2", {"selected": torch.zeros(1, 3, dtype=torch.int32)}),
        (ValueError, "block_table has 3 rows", {"block_table": torch.zeros(3, 2, dtype=torch.int32)}),
        (ValueError, "block_table has shape", {"block_table": torch.zeros(2, 0, dtype=torch.int32)}),
        (ValueError, "block_size is 0", {"block_size": 0}),
        (ValueError, "n_prior is True", {"n_prior": True}),
        (ValueError, "n_prior is 16777217; accepted: an integer from 1 to 16777216", {"n_prior": 2**24 + 1}),
        (ValueError, "n_rows is 4294967296; accepted: an integer from 1 to 2147483647", {"n_rows": 2**32}),
        (ValueError, "block_size is 1180591", {"block_size": 2**70}),
        (TypeError, "selected is sparse", {"selected": torch.ones(2, 3, dtype=torch.int32).to_sparse()}),
        (TypeError, "positions is sparse", {"positions": torch.tensor([7, 3]).to_sparse()}),
        (ValueError, "selected is on device meta", {"selected": torch.ones(2, 3, dtype=torch.int32, device="meta")}),
        (ValueError, "n_rows is 15; accepted: a multiple of block_size 4", {"n_rows": 15}),
        (ValueError, "selected names 3 keys per token; accepted: up to n_prior 2", {"n_prior": 2}),
        (ValueError, "positions has -1", {"positions": torch.tensor([7, -1])}),
        (ValueError, "positions has 16777217", {"positions": torch.tensor([7, LAST_POSITION + 1])}),
    ],
)
def test_bad_input_is_refused_by_name(error, words, changes):
    with pytest.raises(error, match=words):
        build_prior_index(**good(**changes))
