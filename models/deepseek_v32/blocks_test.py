"""Blocks belong to one sequence at a time, and what does not fit changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.deepseek_v32.blocks import NO_BLOCK, BlockManager, CacheExhaustedError


def owned(manager, sequences):
    """Blocks by sequence, from the table."""
    if not sequences:
        return {}
    rows = manager.table(sequences).tolist()
    return {name: [b for b in row if b != NO_BLOCK] for name, row in zip(sequences, rows, strict=True)}


@given(
    n_blocks=st.integers(1, 12),
    block_size=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=40),
)
def test_any_order_of_growth_and_end(n_blocks, block_size, steps):
    """Sequences grow, or end where the length is above 25."""
    manager = BlockManager(n_blocks, block_size)
    lengths: dict[int, int] = {}
    for name, length in steps:
        before = owned(manager, list(lengths))
        if length > 25 and name in lengths:
            manager.free(name)
            del lengths[name]
        else:
            longest = max(length, lengths.get(name, 0))
            try:
                manager.reserve({name: longest})
                lengths[name] = longest
            except CacheExhaustedError:
                assert owned(manager, list(lengths)) == before
        blocks = owned(manager, list(lengths))
        taken = [block for own in blocks.values() for block in own]
        assert len(set(taken)) == len(taken) == n_blocks - manager.free_blocks
        assert all(0 <= block < n_blocks for block in taken)
        for one, own in blocks.items():
            assert len(own) == -(-lengths[one] // block_size)
            kept = before.get(one, [])
            assert own[: len(kept)] == kept


def test_exhaustion_is_all_or_nothing():
    manager = BlockManager(4, 8)
    manager.reserve({7: 9})
    with pytest.raises(
        CacheExhaustedError, match=r"sequences 7, 8 need 3 more cache blocks of 8 positions; 2 of 4 are"
    ):
        manager.reserve({7: 17, 8: 16})
    assert manager.free_blocks == 2
    manager.reserve({7: 1, 8: 16})
    assert [len(own) for own in owned(manager, [7, 8]).values()] == [2, 2]
    manager.free(8)
    manager.free(7)
    manager.reserve({8: 32})
    assert manager.free_blocks == 0


def test_bad_input():
    with pytest.raises(ValueError, match="n_blocks must be at least 1, got 0"):
        BlockManager(0, 8)
    with pytest.raises(TypeError, match="block_size must be an integer"):
        BlockManager(4, "8")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="sequence 3 has no cache blocks; those that have: "):
        BlockManager(4, 8).free(3)
