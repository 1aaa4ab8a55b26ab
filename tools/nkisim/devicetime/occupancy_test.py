"""Occupancy against an account byte by byte, and by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from common import hardware
from devicetime import occupancy
from devicetime.operands import HBM, PSUM, SBUF, Boxes, Operands

TRN2 = hardware.TRN2
tensors = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=25
)


def steps(lives, memory, places):
    """Steps of tensors that live (from, to) at (first byte, bytes); a record opens each and another one closes it."""
    none = np.zeros(0, np.int64)
    byte, row_bytes = np.array(places, np.int64).T
    order = np.arange(2 * len(lives))
    operands = Operands(
        record=order,
        is_write=order % 2 == 0,
        allocation=order // 2,
        pattern=none,
        boxes=Boxes(*[none] * 6),
        allocations=tuple(range(len(lives))),  # type: ignore[arg-type]
        addresses=[None] * len(lives),
        memory=np.array(memory, np.int64),
        row_bytes=row_bytes,
        first_operand=none,
    )
    times = np.array(lives, float).reshape(-1)
    return occupancy.steps(operands, byte, times, times, TRN2)


@given(tensors)
@settings(max_examples=200, deadline=None)
def test_bytes_of_several_tensors_count_once(found):
    lives = [(start, start + length) for start, length, _, _ in found]
    sbuf, psum = steps(lives, [SBUF] * len(found), [(byte, size) for _, _, byte, size in found])
    assert len(psum) == 0
    assert (np.diff(sbuf[:, 0]) > 0).all()
    assert sbuf[-1, 1] == 0
    for number, (time, used) in enumerate(sbuf.tolist()):
        after = sbuf[number + 1, 0] if number + 1 < len(sbuf) else time + 1
        middle = (time + after) / 2
        held = np.zeros(64, bool)
        for start, length, byte, size in found:
            held[byte : byte + size] |= start < middle < start + length
        assert used == held.sum()


def test_banks_are_whole_and_count_once():
    """Two tensors in bank 0, one over banks 1 and 2, one in HBM."""
    memory = [PSUM, PSUM, PSUM, HBM]
    places = [(0, 512), (512, 2), (4000, 200), (0, 9999)]
    sbuf, psum = steps([(0, 10), (5, 20), (5, 10), (0, 50)], memory, places)
    assert len(sbuf) == 0
    assert psum.tolist() == [[0, 1], [5, 3], [10, 1], [20, 0]]


def test_a_tensor_on_part_of_anothers_bytes_adds_what_it_has_alone():
    sbuf, _ = steps([(0, 10), (6, 12)], [SBUF] * 2, [(0, 100), (80, 100)])
    assert sbuf.tolist() == [[0, 100], [6, 180], [10, 100], [12, 0]]
