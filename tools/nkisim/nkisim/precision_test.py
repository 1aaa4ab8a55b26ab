"""The high-precision mode: what rounding to narrow types did is gone, what the kernel does wrong is still there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkisim import Options, run, run_ranks
from nkisim.errors import RaceError, UninitializedReadError

RNG = np.random.default_rng(0)
PRECISE, HIGH = Options(precise=True), Options(precise=False)
NARROW = ("bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "tfloat32")


def both(kernel: Callable[..., Any], *args: Any) -> tuple[np.ndarray, np.ndarray]:
    """Results with values as the chip has them, and in the high-precision mode."""
    return tuple(run(kernel, *args, options=options).outputs for options in (PRECISE, HIGH))  # type: ignore[return-value]


def stored(tile: Any) -> Any:
    """An fp32 output with the tile's values."""
    wide = nl.ndarray(tile.shape, nl.float32)
    nisa.tensor_copy(wide, tile)
    out = nl.ndarray(tile.shape, nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, wide)
    return out


def loaded(x: Any, dtype: Any = None) -> Any:
    tile = nl.ndarray(x.shape, dtype or x.dtype)
    nisa.dma_copy(tile, x)
    return tile


def test_rounding_that_hides_a_sum_is_gone() -> None:
    """1 + 100 steps of 2 ** -9 stays 1 in bf16."""

    def kernel(x: Any) -> Any:
        tile = loaded(x)
        for _ in range(100):
            nisa.tensor_scalar(tile, tile, nl.add, 2.0**-9)
        return stored(tile)

    rounded, exact = both(kernel, np.ones((4, 8), ml_dtypes.bfloat16))
    assert (rounded == 1).all()
    np.testing.assert_array_equal(exact, np.float32(1 + 100 * 2.0**-9))


def layer(x: Any, w: Any, scale: float) -> Any:
    """softmax(scale * x.T @ w) by rows, with everything between the instructions in bf16."""
    psum = nl.ndarray((x.shape[1], w.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, loaded(x), loaded(w))
    scores, row = nl.ndarray(psum.shape, nl.bfloat16), nl.ndarray((psum.shape[0], 1), nl.bfloat16)
    nisa.tensor_scalar(scores, psum, nl.multiply, scale)
    nisa.tensor_reduce(row, nl.max, scores, axis=(1,), negate=True)
    bias = nl.ndarray(row.shape, nl.float32)
    nisa.tensor_copy(bias, row)
    weights = nl.ndarray(psum.shape, nl.bfloat16)
    nisa.activation(weights, nl.exp, scores, bias=bias)
    total, inverse = nl.ndarray(row.shape, nl.bfloat16), nl.ndarray(row.shape, nl.float32)
    nisa.tensor_reduce(total, nl.add, weights, axis=(1,))
    nisa.reciprocal(inverse, total)
    nisa.tensor_scalar(weights, weights, nl.multiply, inverse)
    return stored(weights)


def test_a_chain_in_bf16_comes_to_what_fp64_gives_and_a_wrong_scale_does_not() -> None:
    x, w = (RNG.standard_normal((64, n)).astype(ml_dtypes.bfloat16) for n in (32, 100))
    scores = 0.125 * (x.astype(np.float64).T @ w.astype(np.float64))
    expected = np.exp(scores - scores.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    error = [np.abs(found / expected - 1).max() for found in both(layer, x, w, 0.125)]
    wrong = [np.abs(found / expected - 1).max() for found in both(layer, x, w, 0.126)]
    assert error[0] > 3e-3
    assert error[1] < 1e-5
    assert min(wrong) > 3e-3


@pytest.mark.parametrize("dtype", NARROW)
def test_every_narrow_type_keeps_what_was_rounded(dtype: str) -> None:
    """Also beyond the type's largest number, and through each way of storing."""
    kind = getattr(nl, dtype)
    x = (RNG.standard_normal((32, 32)) * 1000).astype(np.float32)
    index = np.arange(32, dtype=np.int32)[::-1, None].copy()

    def kernel(x: Any, index: Any) -> Any:
        tile, rows = loaded(x, kind), loaded(index)
        table = nl.ndarray((32, 32), kind, buffer=nl.private_hbm)
        nisa.dma_copy(table.vector_select(0, rows), tile)
        gathered, turned = nl.ndarray((32, 32), kind), nl.ndarray((32, 32), kind)
        nisa.dma_copy(gathered, table.vector_select(0, rows))
        nisa.dma_transpose(turned, gathered)
        back, mask = nl.ndarray((32, 32), kind), nl.ndarray((32, 32), nl.uint8)
        nisa.nc_transpose(back, turned, engine=nisa.engine.vector)
        nisa.memset(mask, 1)
        picked = nl.ndarray((32, 32), kind)
        nisa.memset(picked, 0.0)
        nisa.tensor_copy_predicated(picked[:, 3:], back[:, 3:], mask[:, 3:])
        nisa.dma_copy(picked[:, 0:3], back[:, 0:3])
        return stored(picked)

    rounded, exact = both(kernel, x, index)
    np.testing.assert_array_equal(exact, x)
    assert (rounded != x).mean() > 0.9


def test_bytes_are_those_of_the_chip() -> None:
    """Views of another type, and outputs, show rounded values."""

    def kernel(x: Any) -> tuple[Any, Any]:
        tile = loaded(x, nl.bfloat16)
        out = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        bits = nl.ndarray(x.shape, nl.uint16)
        nisa.tensor_copy(bits, tile.view(nl.uint16))
        return out, stored(bits.view(nl.bfloat16))

    x = RNG.standard_normal((4, 8)).astype(np.float32)
    rounded = x.astype(ml_dtypes.bfloat16)
    for found in run(kernel, x, options=HIGH).outputs:
        np.testing.assert_array_equal(found.astype(np.float32), rounded.astype(np.float32))


def test_what_is_written_through_another_type_counts() -> None:
    def kernel(x: Any, bits: Any) -> Any:
        tile = loaded(x, nl.bfloat16)
        nisa.tensor_copy(tile[:, 2:4].view(nl.uint16), loaded(bits)[:, 2:4])
        return stored(tile)

    x = RNG.standard_normal((4, 8)).astype(np.float32)
    other = RNG.standard_normal((4, 8)).astype(ml_dtypes.bfloat16)
    expected = x.copy()
    expected[:, 2:4] = other[:, 2:4].astype(np.float32)
    np.testing.assert_array_equal(run(kernel, x, other.view(np.uint16), options=HIGH).outputs, expected)


def test_arguments_are_what_they_are_and_come_back_rounded() -> None:
    def kernel(x: Any, state: Any) -> Any:
        nisa.dma_copy(state[0:2], loaded(x)[0:2])
        return stored(loaded(state))

    x, state = RNG.standard_normal((4, 8)).astype(np.float32), RNG.standard_normal((4, 8)).astype(ml_dtypes.bfloat16)
    expected = np.concatenate([x[0:2], state[2:4].astype(np.float32)])
    np.testing.assert_array_equal(run(kernel, x, state, options=HIGH).outputs, expected)
    np.testing.assert_array_equal(state[0:2], x[0:2].astype(ml_dtypes.bfloat16))


def test_checks_stay() -> None:
    def missing(x: Any) -> None:
        tile = nl.ndarray((4, 8), nl.bfloat16)
        nisa.dma_copy(tile[:, 0:4], x[:, 0:4])
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)

    def race(x: Any) -> None:
        tile = nl.ndarray((4, 8), nl.bfloat16)
        nisa.memset(tile, float(nl.program_id(0)))
        nisa.dma_copy(x, tile)

    x = np.ones((4, 8), ml_dtypes.bfloat16)
    with pytest.raises(UninitializedReadError, match=r"element \[0, 4\]"):
        run(missing, x, options=HIGH)
    with pytest.raises(RaceError):
        run(nki.jit(race)[2], x, options=HIGH)


def test_ranks_add_what_was_not_rounded() -> None:
    def kernel(x: Any) -> Any:
        source, out = (nl.ndarray(x.shape, nl.bfloat16, buffer=nl.shared_hbm) for _ in range(2))
        nisa.dma_copy(source, x)
        ncc.all_reduce([source], [out], ncc.ReplicaGroup([[0, 1]]), nl.add)
        return stored(loaded(out))

    inputs = [RNG.standard_normal((4, 8)).astype(np.float32) for _ in range(2)]
    for finished in run_ranks(kernel, [(x,) for x in inputs], HIGH):
        np.testing.assert_array_equal(finished.outputs, inputs[0] + inputs[1])


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, precise in (("1", True), ("", True), ("0", False)):
        monkeypatch.setenv("NKI_PRECISE_FP", given)
        assert Options().precise is precise
    monkeypatch.setenv("NKI_PRECISE_FP", "2")
    with pytest.raises(ValueError, match=r"NKI_PRECISE_FP=2; accepted: 0 .* or 1"):
        Options()
