"""Calls that once ended in a numpy or Python error of the simulator's inside."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa
import nki.language
from nkisim import run
from nkisim.errors import NkiValidationError

nisa: Any = nki.isa
nl: Any = nki.language

REFUSED = (
    "t[np.zeros(2), 0]",
    "t[:, nl.ds(0, np.zeros(2))]",
    "t.broadcast(1, 'a')",
    "t.rearrange(('a', 'b'), ('a', 'b'), np.zeros(2))",
    "x.reshape((32,))[0:1].squeeze_dim(0)",
    "x[0, 0:1].reshape(())",
    "x.reshape_dim(0, ())",
    "x.vector_select(np.zeros(2), i)",
    "nl.rand('a', None)",
    "nl.ndarray((4, 1.5), nl.float32)",
    "nl.ndarray((4, 8), nl.float32, name=np.zeros(2))",
    "nl.ndarray((4, 8), nl.float32, address=-1)",
    "nl.ndarray((4, 8), 'a')",
    "nl.ndarray((4, 10**30), nl.float32, buffer=nl.hbm)",
    "nl.program_id(np.zeros(2))",
    "nl.load(x, dtype=np.zeros(2))",
    "nl.empty_like(t, buffer=np.zeros(2))",
    "nl.broadcast_to(t, 3)",
    "nl.fmod(nl.multiply, t)",
    "nl.full((4, 8), float('inf'), nl.int32)",
    "nl.max(t, axis=[np.zeros(2)])",
    "nl.rms_norm(t, t, 1, 8, epsilon=t)",
    "nl.shared_identity_matrix(4, dst=nl.max)",
    "nisa.local_gather(t, t, i, num_valid_indices=slice(None))",
    "nisa.topk(t, i, t, np.zeros(2))",
    "nisa.memset(t, 0, engine=np.zeros(2))",
    "nisa.tensor_scalar(t, t, nl.add, 1.0, reverse0=np.zeros(2))",
    "nisa.tensor_scalar(t, t, nl.abs, np.zeros(2))",
    "nisa.scalar_tensor_tensor(t, t, nl.add, 1.0, nl.add, t, reverse1=np.zeros(2))",
    "nisa.activate2(t, nl.exp, t, 1.0, 0.0, nl.multiply, nl.add, reverse0=np.zeros(2))",
    "nisa.activate2(t, nl.exp, t, 1.0, 0.0, nl.multiply, nl.add, reduce_cmd=np.zeros(2))",
    "nisa.tensor_scalar_cumulative(t, t, nl.add, nl.add, 0.0, imm1=np.zeros(2))",
    "nisa.nc_matmul(p, t, t, tile_position=np.zeros(2))",
    "nisa.nc_matmul(p, t, t, is_moving_onezero=np.zeros(2))",
    "nisa.nc_matmul(p, t, t, is_transpose=np.zeros(2))",
    "nisa.nc_matmul(p, t, t, accumulate=np.zeros(2))",
    "nisa.tensor_reduce(t, nl.add, t, (1,), negate=np.zeros(2))",
    "nisa.tensor_reduce(t, nl.add, np.float32, (-2, -1))",
    "nisa.tensor_scalar_reduce(t, t, nl.add, 1.0, nl.add, reduce_res_negate=np.zeros(2))",
    "nisa.tensor_tensor_scan(t, t, t, 0.0, nl.add, nl.add, reverse0=np.zeros(2))",
    "nisa.tensor_copy_predicated(t, t, t.view(nl.uint32), reverse_pred=np.zeros(2))",
    "nl.sequential_range(0, step=np.zeros(2))",
    "nisa.tensor_copy(t.ap([[8, 4], [1, 4], [1, 2]]), t)",
)


def run_line(line: str) -> None:
    def kernel(x: Any) -> None:
        t = nl.ndarray((4, 8), nl.float32)
        nisa.dma_copy(t, x)
        tiles = {"i": nl.ndarray((4, 1), nl.int32), "p": nl.ndarray((8, 8), nl.float32, buffer=nl.psum)}
        exec(line, {"nisa": nisa, "nl": nl, "np": np, "t": t, "x": x, **tiles})

    run(kernel, np.ones((4, 8), np.float32))


@pytest.mark.parametrize("line", REFUSED)
def test_refused_by_an_error_of_the_simulators_own(line: str) -> None:
    with pytest.raises(NkiValidationError):
        run_line(line)


def test_the_next_creation_after_one_that_is_refused() -> None:
    def kernel(x: Any) -> Any:
        with pytest.raises(NkiValidationError):
            nl.ndarray((4, 10**30), nl.float32, buffer=nl.shared_hbm)
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return out

    assert (run(kernel, np.ones((4, 8), np.float32)).outputs == 1).all()


def test_scales_of_a_product_at_a_register() -> None:
    """Each operand of an MX product may have an offset of its own."""

    def kernel(data: Any, scale: Any, position: int | None) -> Any:
        d, s = nl.ndarray((32, 2, 4), nl.float8_e4m3fn_x4), nl.ndarray((32, 2, 4), nl.uint8)
        nisa.dma_copy(d, data.view(nl.float8_e4m3fn_x4))
        nisa.dma_copy(s, scale)
        at = (lambda t: t[:, 1]) if position is None else (lambda t: t.select(1, nisa.register_alloc(position)))
        p = nl.ndarray((4, 4), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(p, at(d), at(d), at(s), at(s))
        tile, out = nl.ndarray((4, 4), nl.float32), nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.tensor_copy(tile, p)
        nisa.dma_copy(out, tile)
        return out

    random = np.random.default_rng(0)
    data = random.integers(0, 0x70, (32, 2, 16), np.uint8)
    scale = random.integers(120, 130, (32, 2, 4), np.uint8)
    expected, found = (run(kernel, data, scale, position).outputs for position in (None, 1))
    np.testing.assert_array_equal(found, expected)
    assert (run(kernel, data, scale, 0).outputs != expected).any()


def test_a_dimension_of_one_element_keeps_no_view_from_a_wider_type() -> None:
    def kernel(x: Any) -> Any:
        tile = nl.ndarray((1, 6, 1), nl.bfloat16)
        nisa.dma_copy(tile, x)
        out = nl.ndarray((1, 1, 3), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile.permute((0, 2, 1)).view(nl.float32))
        return out

    x = np.arange(12, dtype=np.uint8).view(ml_dtypes.bfloat16).reshape(1, 6, 1)
    np.testing.assert_array_equal(run(kernel, x).outputs.reshape(-1), x.reshape(-1).view(np.float32))
