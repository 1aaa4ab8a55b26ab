"""Tests of what a storage knows of unwritten elements, against a flag per byte."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.view_model import Model, draw_call, view, whole
from nkisim import dtypes
from nkisim.enums import MemoryRegion
from nkisim.storage import Allocation, Region, Storage
from nkisim.views import overlaps_itself

TYPES = (dtypes.uint8, dtypes.int16, dtypes.bfloat16, dtypes.float32, dtypes.float8_e4m3fn_x4)


def storage(shape: tuple[int, ...], dtype: dtypes.DType) -> Storage:
    row = prod(shape[1:]) * dtype.itemsize
    made = Allocation(0, "t", MemoryRegion.sbuf, shape, dtype, shape[0], row, None, None)
    return Storage.fresh(made, numerics=True)


def region(model: Model, made: Storage) -> Region:
    size = model.dtype.itemsize
    strides = tuple(s // size for s in model.array.strides)
    return Region(made.allocation, model.dtype, model.offset_bytes // size, model.array.shape, strides)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(data=st.data())
def test_flags_agree_with_a_flag_per_byte(data: st.DataObject) -> None:
    """Writes and queries through views of any type, in any order."""
    shape = (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3)), 4 * data.draw(st.integers(1, 3)))
    dtype = data.draw(st.sampled_from(TYPES))
    made = storage(shape, dtype)
    assert made.raw is not None
    written = np.zeros(made.raw.size, np.bool_)
    for _ in range(data.draw(st.integers(1, 8))):
        model = whole(made.raw, shape, dtype, on_chip=True)
        for _ in range(data.draw(st.integers(0, 3))):
            model = view(model, draw_call(data.draw, model, TYPES)) or model
        if any(s % model.dtype.itemsize for s in model.array.strides):
            continue  # a stride that only a dimension of size 1 has
        flags = model.same_view_of(written).array
        here = region(model, made)
        match data.draw(st.sampled_from(("write", "where", "ask"))):
            case "write" if not overlaps_itself(here.shape, here.strides):
                made.mark_written(here)
                flags[...] = True
            case "where" if not overlaps_itself(here.shape, here.strides):
                bits = data.draw(st.lists(st.booleans(), min_size=model.array.size, max_size=model.array.size))
                chosen = np.array(bits, np.bool_).reshape(model.array.shape)
                made.mark_written_where(here, chosen)
                flags[chosen] = True
            case _:
                pass
        missing = ~flags.all(-1)
        first = made.first_unwritten(here)
        assert first == (tuple(np.argwhere(missing)[0]) if missing.any() else None)
        expected = None if flags.any() and not flags.all() else bool(flags.all())
        assert made.is_written(here) is expected
        assert made.has_been_written is bool(written.any())
    if written.all():
        assert made.unwritten is None


def test_a_half_written_word_is_unwritten() -> None:
    made = storage((2, 4), dtypes.float32)
    halves = Region(made.allocation, dtypes.bfloat16, 0, (2, 4), (8, 2))
    made.mark_written(halves)
    words = Region(made.allocation, dtypes.float32, 0, (2, 4), (4, 1))
    assert made.first_unwritten(words) == (0, 0)
    made.mark_written(halves._replace(offset=1))
    assert made.first_unwritten(words) is None
    assert made.unwritten is None


def test_nothing_is_known_and_nothing_kept_without_numerics() -> None:
    made = Storage.fresh(storage((2, 4), dtypes.float32).allocation, numerics=False)
    assert made.raw is None
    assert made.first_unwritten(Region(made.allocation, dtypes.float32, 0, (2, 4), (4, 1))) is None


def test_a_callers_bytes_are_copied_before_the_first_write() -> None:
    made = storage((2, 4), dtypes.float32)
    given = np.zeros(32, np.uint8)
    shared = Storage(made.allocation, given, written=True)
    whole_region = Region(made.allocation, dtypes.float32, 0, (2, 4), (4, 1))
    assert shared.array(*whole_region[1:]).base is not None
    assert not shared.is_private
    shared.prepare_write(whole_region)
    shared.array(*whole_region[1:])[...] = 1
    assert not given.any()
