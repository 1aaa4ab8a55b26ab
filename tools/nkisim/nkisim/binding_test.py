"""Tensors bound to the storage of another one by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nki.isa
import nki.language
from nkisim import Options, errors, run

nisa: Any = nki.isa
nl: Any = nki.language


@pytest.mark.parametrize(
    ("error", "words", "shape", "more"),
    [
        (errors.ShapeError, r"float32\[8, 4\] on the storage of own float32\[4, 8\]", (8, 4), {}),
        (errors.ShapeError, "shape \\(4, -8\\); accepted: positive sizes", (4, -8), {}),
        (errors.ArgumentError, "shape 'ab'; accepted: a tuple", "ab", {}),
        (errors.ArgumentError, "storage 's'; accepted: the storage of a tensor", (4, 8), {"storage": "s"}),
        (errors.ArgumentError, r"placeholder \[4, 8\] has no storage", (4, 8), {"storage": None}),
        (errors.WrongBufferError, "buffer psum for own; accepted: sbuf", (4, 8), {"buffer": nl.psum}),
        (errors.WrongBufferError, "buffer 'cache'; accepted: sbuf, psum", (4, 8), {"buffer": "cache"}),
    ],
)
def test_tensors_bound_to_a_storage_that_does_not_suit(
    error: type, words: str, shape: Any, more: dict[str, Any]
) -> None:
    def kernel(x: Any) -> None:
        own = nl.ndarray((4, 8), nl.float32, name="own")
        nisa.dma_copy(own, x)
        again = nl.NkiTensor((4, 2, 4), nl.float32, own.storage)
        nisa.tensor_copy(again, own)
        nisa.tensor_copy(own, nl.NkiTensor(**{"shape": shape, "dtype": nl.float32, "storage": own.storage, **more}))

    with pytest.raises(error, match=words):
        run(kernel, np.ones((4, 8), np.float32))


def test_a_placeholder_has_a_shape_and_no_values() -> None:
    tensor = nl.NkiTensor((4, 2, 3), nl.bfloat16, None, nl.sbuf, "later")
    assert (tensor.shape, tensor.dtype, tensor.name) == ((4, 2, 3), nl.bfloat16, "later")
    assert tensor[:, 1].shape == (4, 3)
    assert repr(tensor) == "<later: bfloat16[4, 2, 3] in sbuf>"


def test_a_tensor_bound_to_a_storage_shares_its_bytes() -> None:
    def kernel(x: Any) -> Any:
        own = nl.ndarray((4, 8), nl.float32)
        nisa.dma_copy(own, x)
        words = nl.NkiTensor((4, 2, 4), nl.int32, own.storage)
        out = nl.ndarray((4, 2, 4), nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, words)
        return out

    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    outputs = run(kernel, x, options=Options(target="trn3")).outputs
    np.testing.assert_array_equal(outputs, x.view(np.int32).reshape(4, 2, 4))
