"""Property tests of the view algebra: chains of views of a tensor against the same chains on numpy arrays."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki.language
from fuzz.view_model import Ds, Model, ViewCall, draw_call, view, whole
from nkisim import dtypes
from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError, OutOfBoundsError, ShapeError, ViewError
from nkisim.storage import Allocation, Storage
from nkisim.tensor import NkiTensor
from nkisim.views import overlaps_itself

REFUSALS = (ViewError, ShapeError, OutOfBoundsError, ArgumentError)
CAST = (dtypes.uint8, dtypes.int16, dtypes.float32, dtypes.bfloat16, dtypes.float8_e4m3)
nl: Any = nki.language


def tensor(shape: tuple[int, ...], dtype: dtypes.DType, buffer: MemoryRegion) -> NkiTensor:
    partitions = shape[0] if buffer is MemoryRegion.sbuf else 1
    row = prod(shape) // partitions * dtype.itemsize
    allocation = Allocation(0, "t", buffer, shape, dtype, partitions, row, None, None)
    return NkiTensor(shape, dtype, Storage.fresh(allocation, numerics=True), buffer)


def called(base: NkiTensor, call: ViewCall) -> NkiTensor:
    """The tensor's own view, with its place worked out."""
    if call.method == "index":
        key = tuple(nl.ds(e.start, e.size) if isinstance(e, Ds) else e for e in call.args)
        made = base[key if len(key) > 1 else key[0]]
    else:
        made = getattr(base, call.method)(*call.args)
    assert made.region.shape == made.shape
    return made


def same_view(made: NkiTensor, model: Model) -> bool:
    array = made.array()
    steps, expected = ([s for n, s in zip(a.shape, a.strides, strict=True) if n > 1] for a in (array, model.array))
    places = [a.__array_interface__["data"][0] for a in (array, model.array)]
    return (array.shape, steps, places[0], made.dtype) == (model.array.shape, expected, places[1], model.dtype)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(data=st.data())
def test_chains_of_views_agree_with_numpy(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(CAST))
    buffer = data.draw(st.sampled_from((MemoryRegion.sbuf, MemoryRegion.private_hbm)))
    on_chip = buffer is MemoryRegion.sbuf
    shape = tuple(data.draw(st.lists(st.integers(1, 8), min_size=2 if on_chip else 1, max_size=4)))
    made = tensor(shape, dtype, buffer)
    assert made.storage.raw is not None
    model = whole(made.storage.raw, shape, dtype, on_chip)
    for _ in range(data.draw(st.integers(1, 6))):
        call = draw_call(data.draw, model, CAST)
        expected = view(model, call)
        try:
            result = called(made, call)
        except REFUSALS:
            assert expected is None, f"{call.source()} of {made.history()} is refused"
            continue
        assert expected is not None, f"{call.source()} of {made.history()} is accepted"
        assert same_view(result, expected), f"{call.source()} of {made.history()} shows something else"
        made, model = result, expected


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1.5,
    "a",
    (),
    (1,),
    [],
    {},
    ...,
    slice(None),
    np.int64(1),
    np.zeros(2),
    nl.float32,
    object,
)
CALLS = (
    "permute", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim", "flatten_dims", "reshape", "rearrange",
    "slice", "select", "vector_select", "indirect", "ap", "view", "__getitem__",
)  # fmt: skip
COUNTS = {
    "broadcast": 2,
    "reshape_dim": 2,
    "flatten_dims": 2,
    "rearrange": 3,
    "slice": 4,
    "select": 2,
    "vector_select": 2,
    "indirect": 2,
    "ap": 5,
}


@settings(max_examples=600, deadline=None, derandomize=True)
@given(data=st.data())
def test_odd_arguments_are_refused_without_a_traceback(data: st.DataObject) -> None:
    from nkisim.errors import NkiValidationError

    made = tensor((4, 6), dtypes.float32, data.draw(st.sampled_from((MemoryRegion.sbuf, MemoryRegion.private_hbm))))
    odd = st.sampled_from((*ODD, made))
    odd = st.one_of(odd, st.tuples(odd, odd), st.lists(odd, max_size=2), st.builds(nl.ds, odd, odd))
    method = data.draw(st.sampled_from(CALLS))
    given_count = COUNTS.get(method, 1)
    arguments = [data.draw(odd) for _ in range(given_count)]
    try:
        result = getattr(made, method)(*arguments)
        assert isinstance(result, NkiTensor)
        assert all(type(n) is int for n in (*result.shape, *result.strides, result.offset))
        result.region  # noqa: B018 - works it out
    except NkiValidationError:
        pass


@settings(max_examples=300, deadline=None, derandomize=True)
@given(dims=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=3))
def test_views_that_show_an_element_twice(dims: list[tuple[int, int]]) -> None:
    places = np.zeros(1, np.int64)
    for size, stride in dims:
        places = (places[:, None] + np.arange(size) * stride).reshape(-1)
    twice = np.unique(places).size < places.size
    assert overlaps_itself(tuple(n for n, _ in dims), tuple(s for _, s in dims)) is twice


def test_what_numpy_alone_would_accept_is_refused() -> None:
    made = tensor((4, 6), dtypes.float32, MemoryRegion.sbuf)
    with pytest.raises(ViewError, match="partition dimension"):
        made.permute((1, 0))
    with pytest.raises(OutOfBoundsError, match="accepted: 0 <= start < stop <= 6"):
        made[:, 2:2]
