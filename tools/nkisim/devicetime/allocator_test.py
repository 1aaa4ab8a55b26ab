"""Addresses: given ones are kept, others never collide while they live, and space is handed out in turn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import hardware
from devicetime import allocator
from devicetime.operands import HBM, PSUM, SBUF, Boxes, Operands

TRN2 = hardware.TRN2


def made(accesses, memory, row_bytes, addresses=None):
    """Operands of which only what the allocator reads is filled in; `accesses` are (record, allocation)."""
    record, allocation = np.array(accesses, np.int64).reshape(-1, 2).T
    none = np.zeros(0, np.int64)
    return Operands(
        record=record,
        is_write=record >= 0,
        allocation=allocation,
        pattern=none,
        boxes=Boxes(*[none] * 6),
        allocations=(),
        addresses=addresses or [None] * len(memory),
        memory=np.array(memory, np.int64),
        row_bytes=np.array(row_bytes, np.int64),
        first_operand=none,
    )


tensors = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(1, 20_000)), min_size=1, max_size=40)


@given(tensors)
@settings(max_examples=200, deadline=None)
def test_tensors_that_live_together_do_not_collide(lives):
    order = sorted(range(len(lives)), key=lambda n: lives[n][0])
    accesses = sorted(
        [(first, n) for n, (first, _, _) in enumerate(lives)] + [(f + d, n) for n, (f, d, _) in enumerate(lives)]
    )
    sizes = [size for _, _, size in lives]
    _, byte = allocator.place(made(accesses, [SBUF] * len(lives), sizes), TRN2)
    peak = max(sum(-(-s // 4) * 4 for f, d, s in lives if f <= t <= f + d) for t in range(81))
    largest = max(sizes)
    roomy = 2 * peak + largest < TRN2.sbuf_usable_bytes_per_partition
    for a in order:
        for b in order:
            together = lives[a][0] <= lives[b][0] + lives[b][1] and lives[b][0] <= lives[a][0] + lives[a][1]
            if a < b and together and roomy:
                assert byte[a] + sizes[a] <= byte[b] or byte[b] + sizes[b] <= byte[a]
    assert (byte >= 0).all()
    assert (byte % 4 == 0).all()
    if roomy:
        assert (byte + sizes <= TRN2.sbuf_usable_bytes_per_partition).all()


def test_given_addresses_stay_and_others_avoid_them():
    found = made([(0, 0), (0, 1), (1, 2), (2, 0)], [SBUF, SBUF, HBM], [1000, 4, 8], [(32, 4096), None, None])
    partition, byte = allocator.place(found, TRN2)
    assert partition.tolist() == [32, 0, 0]
    assert byte.tolist() == [4096, 0, 0]


def test_psum_in_banks_in_turn():
    count = TRN2.psum_banks + 2
    found = made([(n, n) for n in range(count)], [PSUM] * count, [100] * count)
    _, byte = allocator.place(found, TRN2)
    assert (byte // TRN2.psum_bank_bytes).tolist() == [*range(8), 0, 1]
    assert (byte % TRN2.psum_bank_bytes == 0).all()


def test_space_is_reused_as_late_as_possible():
    third = TRN2.sbuf_usable_bytes_per_partition // 3 // 4 * 4
    found = made([(n, n) for n in range(5)], [SBUF] * 5, [third] * 5)
    _, byte = allocator.place(found, TRN2)
    assert byte.tolist() == [0, third, 2 * third, 0, third]


@pytest.mark.parametrize("whole", [0, 1])
def test_what_does_not_fit_shares(whole):
    """Fragments can leave no hole that is large enough, where the sum of what lives would fit."""
    size = TRN2.sbuf_usable_bytes_per_partition
    found = made([(0, 0), (1, 1), (2, 0), (2, 1)], [SBUF] * 2, [size - 4, size - 8 if whole else 8])
    _, byte = allocator.place(found, TRN2)
    assert byte.tolist() == [0, 0]
